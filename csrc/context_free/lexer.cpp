#include "context_free/lexer.h"

#include <climits>
#include <utility>

namespace structout::context_free {

namespace {

constexpr uint32_t kMaxStates = 50'000;  // 1 kB each

}  // namespace

Lexer::Lexer(const Network& network) : network_(network) {
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

uint32_t Lexer::number_of(const std::vector<Item>& items) {
  uint32_t number = items_.number_of(items);
  if (number < states_.size()) return number;
  State state;
  state.after.fill(kNone);
  // The lazy ones of those that accept, if there are some, and of these the ones of the
  // highest priority.
  std::vector<uint32_t> accepted;
  std::pair<bool, int> best = {false, INT_MIN};
  for (const Item& item : items) {
    const Terminal& terminal = network_.terminals()[item.terminal];
    if (item.place == kFresh || !terminal.automaton.accepts(item.place - 1)) continue;
    std::pair<bool, int> rank = {terminal.is_lazy, terminal.priority};
    if (rank < best) continue;
    if (rank > best) accepted.clear();
    best = rank;
    accepted.push_back(item.terminal);
  }
  bool is_over = best.first;
  if (is_over) state.after.fill(kStuck);
  state.accepted = set_of(accepted);
  states_.push_back(state);
  return number;
}

uint32_t Lexer::computed_after(uint32_t state, uint8_t byte, fsm::Budget& budget) {
  std::vector<Item> items;
  budget.spend(items_.count(state) + 1);
  for (const Item* item = items_.begin(state); item < items_.end(state); ++item) {
    uint32_t state_before = item->place == kFresh ? 0 : item->place - 1;
    uint32_t next = network_.terminals()[item->terminal].automaton.next(state_before, byte);
    if (next != fsm::kDead) items.push_back({item->terminal, next + 1});
  }
  uint32_t result = number_of(items);
  if (num_states() > kMaxStates) throw fsm::LimitError("lexer_states", num_states(), kMaxStates);
  return states_[state].after[byte] = result;
}

}  // namespace structout::context_free
