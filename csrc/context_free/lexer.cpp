#include "context_free/lexer.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace structout::context_free {

namespace {

constexpr uint32_t kMaxStates = 50'000;  // 1 kB each

}  // namespace

Lexer::Lexer(const Network& network, bool is_plain) : network_(network), is_plain_(is_plain) {
  set_of({});
  number_of({});
}

uint32_t Lexer::start(uint32_t set) {
  if (starts_.size() <= set) starts_.resize(sets_.size(), kNone);
  if (starts_[set] != kNone) return starts_[set];
  std::vector<Item> items;
  for (const uint32_t* terminal = begin(set); terminal < end(set); ++terminal) {
    if (network_.terminals()[*terminal].automaton.num_states() != 0) items.push_back({*terminal, kFresh});
  }
  return starts_[set] = number_of(items);
}

std::vector<uint32_t> Lexer::chosen(const Network& network, std::vector<uint32_t> terminals) {
  auto rank = [&](uint32_t terminal) {
    const Terminal& of = network.terminals()[terminal];
    return std::make_tuple(of.is_lazy, of.priority, of.is_ignored);
  };
  auto is_better = [&](uint32_t a, uint32_t b) { return rank(a) < rank(b); };
  if (terminals.empty()) return terminals;
  auto best = rank(*std::max_element(terminals.begin(), terminals.end(), is_better));
  auto is_worse = [&](uint32_t terminal) { return rank(terminal) < best; };
  terminals.erase(std::remove_if(terminals.begin(), terminals.end(), is_worse), terminals.end());
  return terminals;
}

uint32_t Lexer::number_of(const std::vector<Item>& items) {
  uint32_t number = items_.number_of(items);
  if (number < states_.size()) return number;
  State state;
  state.after.fill(kNone);
  std::vector<uint32_t> accepted;
  bool is_over = false;
  for (const Item& item : items) {
    const Terminal& terminal = network_.terminals()[item.terminal];
    if (item.place == kFresh || !terminal.automaton.accepts(item.place - 1)) continue;
    accepted.push_back(item.terminal);
    is_over = is_over || (terminal.is_lazy && !is_plain_);
  }
  if (is_over) state.after.fill(kStuck);
  state.accepted = set_of(is_plain_ ? accepted : chosen(network_, accepted));
  states_.push_back(state);
  return number;
}

uint32_t Lexer::computed_after(uint32_t state, uint8_t byte, engine::Budget& budget) {
  std::vector<Item> items;
  budget.spend(items_.count(state) + 1);
  for (const Item* item = items_.begin(state); item < items_.end(state); ++item) {
    const Terminal& terminal = network_.terminals()[item->terminal];
    uint32_t state_before = item->place == kFresh ? 0 : item->place - 1;
    if (item->place != kFresh && terminal.is_lazy && terminal.automaton.accepts(state_before)) continue;
    uint32_t next = terminal.automaton.next(state_before, byte);
    if (next != engine::kDead) items.push_back({item->terminal, next + 1});
  }
  uint32_t result = number_of(items);
  if (num_states() > kMaxStates) throw engine::LimitError("lexer_states", num_states(), kMaxStates);
  return states_[state].after[byte] = result;
}

}  // namespace structout::context_free
