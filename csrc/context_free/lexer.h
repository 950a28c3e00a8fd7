// Reads the longest texts of terminals.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/limits.h"
#include "base/number_table.h"
#include "context_free/network.h"

namespace structout::context_free {

// Follows the terminals that may stand somewhere side by side. A lexeme ends where none
// of them can go on, or where a lazy one accepts it, and is one of each terminal that
// accepts it. So the lexer is greedy,
// among the terminals that the grammar allows at the place (a contextual lexer: Van Wyk
// and Schwerdfeger, "Context-Aware Scanning for Parsing Extensible Languages", 2007).
class Lexer {
 public:
  static constexpr uint32_t kStuck = 0;  // no terminal can go on

  // `is_plain`: a lexeme counts as each terminal that accepts it, and a lazy terminal ends
  // no other's.
  explicit Lexer(const Network& network, bool is_plain = false);

  // A set of terminals has a number, the empty set 0.
  uint32_t set_of(const std::vector<uint32_t>& terminals) { return sets_.number_of(terminals); }
  const uint32_t* begin(uint32_t set) const { return sets_.begin(set); }
  const uint32_t* end(uint32_t set) const { return sets_.end(set); }
  bool is_ignored(uint32_t terminal) const { return network_.terminals()[terminal].is_ignored; }

  // The state in front of a lexeme of one of the terminals.
  uint32_t start(uint32_t set);

  // The state after a byte of the lexeme.
  uint32_t after(uint32_t state, uint8_t byte, engine::Budget& budget) {
    uint32_t known = states_[state].after[byte];
    return known != kNone ? known : computed_after(state, byte, budget);
  }

  // Those of the terminals that a lexeme counts as if it is a text of all of them: lazy
  // ones if there are some, of these the ones of the highest priority, and what is ignored.
  static std::vector<uint32_t> chosen(const Network& network, std::vector<uint32_t> terminals);

  // The set of terminals that accept what was read of the lexeme. Not those that accept
  // the empty text, if nothing was read.
  uint32_t accepted(uint32_t state) const { return states_[state].accepted; }

  // Whether nothing was read.
  bool is_fresh(uint32_t state) const { return items_.count(state) != 0 && items_.begin(state)->place == kFresh; }

  uint32_t num_states() const { return uint32_t(states_.size()); }
  size_t memory_bytes() const {
    return states_.size() * sizeof(State) + items_.memory_bytes() + sets_.memory_bytes() + starts_.capacity() * 4;
  }

 private:
  static constexpr uint32_t kFresh = 0;  // nothing was read
  struct Item {
    uint32_t terminal;
    uint32_t place;  // 1 + the state of its automaton, or kFresh
    bool operator==(const Item& other) const { return terminal == other.terminal && place == other.place; }
  };
  struct State {
    uint32_t accepted;
    std::array<uint32_t, 256> after;
  };

  uint32_t number_of(const std::vector<Item>& items);
  uint32_t computed_after(uint32_t state, uint8_t byte, engine::Budget& budget);

  const Network& network_;
  const bool is_plain_;
  ListNumbers<Item> items_;
  ListNumbers<uint32_t> sets_;
  std::vector<uint32_t> starts_;  // by set, as far as known
  std::deque<State> states_;
};

}  // namespace structout::context_free
