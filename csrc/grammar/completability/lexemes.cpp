#include "grammar/completability/lexemes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/sorted_set.h"

namespace structout::context_free {

bool ByteClassSets::add_minimal(std::vector<uint32_t>& minimal, uint32_t set) const {
  for (uint32_t other : minimal) {
    if (is_subset(other, set)) return false;
  }
  auto is_larger = [&](uint32_t other) { return is_subset(set, other); };
  minimal.erase(std::remove_if(minimal.begin(), minimal.end(), is_larger), minimal.end());
  minimal.push_back(set);
  return true;
}

Lexemes::Lexemes(const Network& network, ByteClassSets& sets)
    : network_(network), sets_(sets), lexer_(network, true), bytes_(lexer_.bytes_with_tokens()) {}

const Lexemes::State& Lexemes::state_of(uint32_t number, engine::Budget& budget) {
  auto found = states_.find(number);
  if (found != states_.end()) return found->second;
  State state;
  ByteClasses extending;
  for (uint8_t byte : bytes_) {
    uint32_t next = lexer_.after(number, byte, budget);
    if (next == Lexer::kStuck) continue;
    extending.set(lexer_.class_of(byte));
    state.next.push_back(next);
  }
  engine::make_set(state.next);
  state.end = sets_.number_of(extending);
  return states_.emplace(number, std::move(state)).first->second;
}

const Lexemes::Spellings& Lexemes::spellings(uint32_t context, engine::Budget& budget) {
  auto found = spellings_.find(context);
  if (found != spellings_.end()) return found->second;
  // By state: the classes of the first bytes of texts that lead to it, before a lazy
  // terminal ends them.
  std::map<uint32_t, ByteClasses> first_classes;
  uint32_t start = lexer_.start(context);
  for (uint8_t byte : bytes_) {
    uint32_t next = lexer_.after(start, byte, budget);
    if (next != Lexer::kStuck) first_classes[next].set(lexer_.class_of(byte));
  }
  std::vector<uint32_t> pending;
  for (const auto& [state, classes] : first_classes) pending.push_back(state);
  auto is_lazy = [this](uint32_t terminal) { return network_.terminals()[terminal].options.is_lazy; };
  while (!pending.empty()) {
    uint32_t number = pending.back();
    pending.pop_back();
    uint32_t set = lexer_.accepted(number);
    if (std::any_of(lexer_.begin(set), lexer_.end(set), is_lazy)) continue;
    const ByteClasses& classes = first_classes[number];
    const State& state = state_of(number, budget);
    budget.spend(state.next.size() + 1);
    for (uint32_t next : state.next) {
      ByteClasses& of_next = first_classes[next];
      if ((classes & ~of_next).none()) continue;
      of_next |= classes;
      pending.push_back(next);
    }
  }
  Spellings result(network_.terminals().size());
  for (const auto& [number, classes] : first_classes) {
    uint32_t set = lexer_.accepted(number);
    if (set == 0) continue;
    for (uint32_t terminal : Lexer::chosen(network_, {lexer_.begin(set), lexer_.end(set)})) {
      bool ends_here =
          is_lazy(terminal) || (lexer_.has_token_limit(terminal) && lexer_.accepted_at_limit(number, budget) != 0);
      uint32_t end = ends_here ? ByteClassSets::kEmpty : state_of(number, budget).end;
      auto same = std::find_if(result[terminal].begin(), result[terminal].end(),
                               [&](const Spelling& other) { return other.end == end; });
      if (same == result[terminal].end()) same = result[terminal].insert(same, {end, ByteClasses()});
      same->first |= classes;
    }
  }
  return spellings_.emplace(context, std::move(result)).first->second;
}

bool Lexemes::may_follow(uint32_t symbol, uint32_t end) const {
  if (symbol >= kFirstToken) return true;
  const std::bitset<256>& first = network_.embedded()[embedded_of_symbol(symbol)]->first_bytes();
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (first[byte] && !sets_[end][lexer_.class_of(uint8_t(byte))]) return true;
  }
  return false;
}

std::vector<uint32_t> Lexemes::ends_after(uint32_t context, uint32_t terminal, uint32_t end, engine::Budget& budget) {
  std::vector<uint32_t> ends;
  for (const Spelling& spelling : spellings(context, budget)[terminal]) {
    if ((spelling.first & ~sets_[end]).any()) sets_.add_minimal(ends, spelling.end);
  }
  return ends;
}

}  // namespace structout::context_free
