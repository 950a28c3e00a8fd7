// Reads the longest texts of terminals.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "context_free/network.h"
#include "context_free/number_tables.h"

namespace structout::context_free {

// Follows the terminals that may stand somewhere side by side. A lexeme ends where none
// of them can go on, or where a lazy one accepts it, and is one of each terminal that
// accepts it. So the lexer is greedy, among the terminals that the grammar allows at the
// place (a contextual lexer: Van Wyk and Schwerdfeger, "Context-Aware Scanning for Parsing
// Extensible Languages", 2007).
//
// Bytes that no terminal tells apart are of one class, and take one entry of its tables.
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
    uint8_t byte_class = class_of_byte_[byte];
    uint32_t known = after_[size_t(state) * num_classes() + byte_class];
    return known != kNone ? known : computed_after(state, byte_class, budget);
  }

  uint32_t num_classes() const { return uint32_t(byte_of_class_.size()); }
  uint8_t class_of(uint8_t byte) const { return class_of_byte_[byte]; }

  // One byte of each class, a byte that texts may consist of. Not of classes without one.
  std::vector<uint8_t> bytes_with_tokens() const;

  // Which terminals a lexeme counts as if all of these match it: the lazy ones if there are
  // any, among them those of the highest priority, and what is ignored. Of terminals that
  // end with a stop, those of one stop.
  static std::vector<uint32_t> chosen(const Network& network, std::vector<uint32_t> terminals);

  // The set of terminals that accept what was read of the lexeme. Not those that accept
  // the empty text, if nothing was read.
  uint32_t accepted(uint32_t state) const { return accepted_[state]; }

  // Whether a lexeme of the terminal ends as soon as it may once it has taken some number
  // of tokens, whatever would extend it.
  bool has_token_limit(uint32_t terminal) const {
    return network_.terminals()[terminal].options.max_tokens != engine::kUnbounded;
  }

  // Whether a terminal would go on though it has taken so many tokens.
  bool exceeds_limit(uint32_t state, uint32_t num_tokens) const;

  // The state without the terminals that have taken so many tokens, and the set of those
  // among them that accept what was read.
  struct Limited {
    uint32_t state, accepted;
  };
  Limited limited(uint32_t state, uint32_t num_tokens);

  // The set of the terminals with a limit that accept what was read. Empty unless more can
  // be read that leads back to the state: then it can be that of a text that has reached
  // the limit.
  uint32_t accepted_at_limit(uint32_t state, engine::Budget& budget);

  // Whether nothing was read.
  bool is_fresh(uint32_t state) const { return items_.count(state) != 0 && items_.begin(state)->place == kFresh; }

  uint32_t num_states() const { return uint32_t(accepted_.size()); }
  size_t memory_bytes() const {
    return (after_.capacity() + accepted_.capacity() + starts_.capacity()) * sizeof(uint32_t) + items_.memory_bytes() +
           sets_.memory_bytes();
  }

 private:
  static constexpr uint32_t kFresh = 0;  // nothing was read
  struct Item {
    uint32_t terminal;
    uint32_t place;  // 1 + the state of its automaton, or kFresh
    bool operator==(const Item& other) const { return terminal == other.terminal && place == other.place; }
  };

  bool accepts(const Item& item) const;
  uint32_t number_of(const std::vector<Item>& items);
  void add_state(const std::vector<Item>& items);
  bool leads_back(uint32_t state, engine::Budget& budget);
  uint32_t computed_after(uint32_t state, uint8_t byte_class, engine::Budget& budget);

  const Network& network_;
  const bool is_plain_;
  ListNumbers<Item> items_;
  ListNumbers<uint32_t> sets_;
  std::vector<uint32_t> starts_;  // by set, as far as known
  std::array<uint8_t, 256> class_of_byte_{};
  std::vector<uint8_t> byte_of_class_;  // one of each class
  std::vector<uint32_t> accepted_;      // by state
  std::vector<uint32_t> after_;         // by state and class, as far as known
};

}  // namespace structout::context_free
