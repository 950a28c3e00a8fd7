// A greedy lexer: reads the longest lexemes of the terminals that are allowed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "grammar/gss/number_tables.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

// Follows several terminals at once. A lexeme ends where none of them can continue, or
// where a lazy one accepts it, and counts as the terminals that chosen() selects among
// those that accept it. So the lexer is greedy among the terminals that the grammar allows
// next (a contextual lexer: Van Wyk and Schwerdfeger, "Context-Aware Scanning for Parsing
// Extensible Languages", 2007).
//
// A state is a set of states of the terminals' automata, made on first use: a known step
// costs one table lookup, a new one a step of each automaton. Bytes that no terminal tells
// apart share a class, and one entry of the table.
class Lexer {
 public:
  static constexpr uint32_t kStuck = 0;  // no terminal can continue

  // `is_plain`: a lexeme counts as every terminal that accepts it, and a lazy terminal ends
  // no lexeme of others.
  explicit Lexer(const Network& network, bool is_plain = false);

  // Returns the number of a set of terminals; that of the empty set is 0.
  uint32_t set_of(const std::vector<uint32_t>& terminals) { return sets_.number_of(terminals); }
  const uint32_t* begin(uint32_t set) const { return sets_.begin(set); }
  const uint32_t* end(uint32_t set) const { return sets_.end(set); }
  bool is_ignored(uint32_t terminal) const { return network_.terminals()[terminal].is_ignored; }

  // The state in front of a lexeme of one of the terminals.
  uint32_t start(uint32_t set);

  // The state after a byte of the lexeme, kStuck if no terminal can read it.
  uint32_t after(uint32_t state, uint8_t byte, engine::Budget& budget) {
    uint8_t byte_class = class_of_byte_[byte];
    uint32_t known = after_[size_t(state) * num_classes() + byte_class];
    return known != kNone ? known : computed_after(state, byte_class, budget);
  }

  uint32_t num_classes() const { return uint32_t(byte_of_class_.size()); }
  uint8_t class_of(uint8_t byte) const { return class_of_byte_[byte]; }

  // Returns a byte of each class, one that texts may consist of. Omits classes without such
  // a byte.
  std::vector<uint8_t> bytes_with_tokens() const;

  // Returns the terminals that a lexeme counts as if all of these match it. Lazy terminals
  // win over others, then a higher priority wins, then ignored terminals over others. A
  // winner with another stop than the first one drops out.
  static std::vector<uint32_t> chosen(const Network& network, std::vector<uint32_t> terminals);

  // The set of terminals that the lexeme counts as if it ends in this state. It is empty in
  // front of the first byte, even if a terminal accepts the empty text.
  uint32_t accepted(uint32_t state) const { return accepted_[state]; }

  // True if the terminal has max_tokens: once its lexeme has taken so many tokens, it ends
  // as soon as it may, even if more bytes could extend it.
  bool has_token_limit(uint32_t terminal) const {
    return network_.terminals()[terminal].options.max_tokens != engine::kUnbounded;
  }

  // True if a terminal that could continue has used up its limit after `num_tokens` tokens.
  bool exceeds_limit(uint32_t state, uint32_t num_tokens) const;

  // Drops the terminals that have used up their limit after `num_tokens` tokens. Returns
  // the state without them, and the set of the dropped ones that accept the lexeme in this
  // state.
  struct Limited {
    uint32_t state, accepted;
  };
  Limited limited(uint32_t state, uint32_t num_tokens);

  // The set of the terminals with a limit that accept the lexeme in this state. It is empty
  // unless bytes lead from the state back to it: only then is it certain that a lexeme in
  // this state can have reached the limit.
  uint32_t accepted_at_limit(uint32_t state, engine::Budget& budget);

  // True in front of the first byte of a lexeme.
  bool is_fresh(uint32_t state) const { return items_.count(state) != 0 && items_.begin(state)->progress == kFresh; }

  uint32_t num_states() const { return uint32_t(accepted_.size()); }
  size_t memory_bytes() const {
    return (after_.capacity() + accepted_.capacity() + starts_.capacity()) * sizeof(uint32_t) + items_.memory_bytes() +
           sets_.memory_bytes();
  }

 private:
  static constexpr uint32_t kFresh = 0;  // in front of the first byte
  struct Item {
    uint32_t terminal;
    uint32_t progress;  // 1 + the state of its automaton, or kFresh
    bool operator==(const Item& other) const { return terminal == other.terminal && progress == other.progress; }
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
