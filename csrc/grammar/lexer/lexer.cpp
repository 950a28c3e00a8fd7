#include "grammar/lexer/lexer.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/room.h"

namespace structout::context_free {

namespace {

constexpr uint32_t kMaxStates = 50'000;  // up to 1 kB each

}  // namespace

Lexer::Lexer(const Network& network, bool is_plain) : network_(network), is_plain_(is_plain) {
  std::array<bool, 257> bounds{};
  bounds[0] = true;
  for (const Terminal& terminal : network.terminals()) {
    for (uint32_t state = 0; state < terminal.automaton.num_states(); ++state) {
      for (const engine::Edge* edge = terminal.automaton.begin(state); edge < terminal.automaton.end(state); ++edge) {
        bounds[edge->first] = bounds[edge->last + 1] = true;
      }
    }
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (bounds[byte]) byte_of_class_.push_back(uint8_t(byte));
    class_of_byte_[byte] = uint8_t(byte_of_class_.size() - 1);
  }
  set_of({});
  number_of({});
}

std::vector<uint8_t> Lexer::bytes_with_tokens() const {
  std::vector<uint8_t> bytes;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    bool is_of_new_class = bytes.empty() || class_of(bytes.back()) != class_of(uint8_t(byte));
    if (network_.may_consist_of(uint8_t(byte)) && is_of_new_class) bytes.push_back(uint8_t(byte));
  }
  return bytes;
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
    return std::make_tuple(of.options.is_lazy, of.priority, of.is_ignored);
  };
  auto is_better = [&](uint32_t a, uint32_t b) { return rank(a) < rank(b); };
  if (terminals.empty()) return terminals;
  auto best = rank(*std::max_element(terminals.begin(), terminals.end(), is_better));
  uint32_t first = *std::find_if(terminals.begin(), terminals.end(), [&](uint32_t of) { return rank(of) == best; });
  const std::string& stop = network.terminals()[first].options.stop;
  auto is_worse = [&](uint32_t terminal) {
    return rank(terminal) < best || network.terminals()[terminal].options.stop != stop;
  };
  terminals.erase(std::remove_if(terminals.begin(), terminals.end(), is_worse), terminals.end());
  return terminals;
}

bool Lexer::accepts(const Item& item) const {
  return item.progress != kFresh && network_.terminals()[item.terminal].automaton.accepts(item.progress - 1);
}

bool Lexer::exceeds_limit(uint32_t state, uint32_t num_tokens) const {
  return std::any_of(items_.begin(state), items_.end(state), [&](const Item& item) {
    return network_.terminals()[item.terminal].options.max_tokens <= num_tokens;
  });
}

Lexer::Limited Lexer::limited(uint32_t state, uint32_t num_tokens) {
  std::vector<Item> left;
  std::vector<uint32_t> accepted;
  for (const Item* item = items_.begin(state); item < items_.end(state); ++item) {
    if (network_.terminals()[item->terminal].options.max_tokens > num_tokens) {
      left.push_back(*item);
    } else if (accepts(*item)) {
      accepted.push_back(item->terminal);
    }
  }
  return {number_of(left), set_of(chosen(network_, std::move(accepted)))};
}

// True if some bytes lead from the state back to it, and no lazy terminal ends the lexeme
// on the path.
bool Lexer::leads_back(uint32_t state, engine::Budget& budget) {
  const std::vector<uint8_t> bytes = bytes_with_tokens();
  auto is_lazy = [this](uint32_t terminal) { return network_.terminals()[terminal].options.is_lazy; };
  std::vector<uint32_t> pending = {state};
  std::set<uint32_t> seen;
  while (!pending.empty()) {
    uint32_t from = pending.back();
    pending.pop_back();
    uint32_t set = accepted(from);
    if (std::any_of(begin(set), end(set), is_lazy)) continue;
    for (uint8_t byte : bytes) {
      uint32_t next = after(from, byte, budget);
      if (next == state) return true;
      if (next != kStuck && seen.insert(next).second) pending.push_back(next);
    }
  }
  return false;
}

uint32_t Lexer::accepted_at_limit(uint32_t state, engine::Budget& budget) {
  uint32_t set = limited(state, engine::kUnbounded - 1).accepted;
  return set != 0 && leads_back(state, budget) ? set : 0;
}

uint32_t Lexer::number_of(const std::vector<Item>& items) {
  uint32_t number = items_.number_of(items);
  while (num_states() <= number) add_state(items_.list(num_states()));  // after a failed allocation more than one
  return number;
}

void Lexer::add_state(const std::vector<Item>& items) {
  std::vector<uint32_t> accepted;
  bool is_over = false;
  for (const Item& item : items) {
    const Terminal& terminal = network_.terminals()[item.terminal];
    if (!accepts(item) || terminal.options.ends_at_limit_only) continue;
    accepted.push_back(item.terminal);
    is_over = is_over || (terminal.options.is_lazy && !is_plain_);
  }
  uint32_t set = set_of(is_plain_ ? accepted : chosen(network_, accepted));
  engine::make_room(accepted_);
  after_.resize(size_t(num_states() + 1) * num_classes(), kStuck);
  accepted_.push_back(set);
  for (const Item& item : items) {
    if (is_over) break;
    const engine::Automaton& automaton = network_.terminals()[item.terminal].automaton;
    uint32_t state = item.progress == kFresh ? 0 : item.progress - 1;
    for (const engine::Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
      auto classes = after_.end() - num_classes();
      std::fill(classes + class_of(edge->first), classes + class_of(edge->last) + 1, kNone);
    }
  }
}

uint32_t Lexer::computed_after(uint32_t state, uint8_t byte_class, engine::Budget& budget) {
  std::vector<Item> items;
  budget.spend(items_.count(state) + 1);
  for (const Item* item = items_.begin(state); item < items_.end(state); ++item) {
    const Terminal& terminal = network_.terminals()[item->terminal];
    uint32_t state_before = item->progress == kFresh ? 0 : item->progress - 1;
    if (terminal.options.is_lazy && accepts(*item)) continue;
    uint32_t next = terminal.automaton.next(state_before, byte_of_class_[byte_class]);
    if (next != engine::kDead) items.push_back({item->terminal, next + 1});
  }
  uint32_t result = number_of(items);
  if (num_states() > kMaxStates) throw engine::LimitError("lexer_states", num_states(), kMaxStates);
  return after_[size_t(state) * num_classes() + byte_class] = result;
}

}  // namespace structout::context_free
