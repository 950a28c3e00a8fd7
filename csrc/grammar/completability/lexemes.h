// Lexemes that can surely follow each other.
#pragma once

#include <bitset>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/limits.h"
#include "grammar/gss/number_tables.h"
#include "grammar/lexer/lexer.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

// A set of classes of bytes. Bytes of one class are those that a lexer does not tell apart.
using ByteClasses = std::bitset<256>;

// Numbers sets of classes. Such a set is the end of a lexeme: the bytes that would extend
// it. After a lexeme of /[0-9]+/, for example, it has the digits, and the next lexeme
// cannot begin with one of them. The larger the end, the fewer lexemes can follow.
class ByteClassSets {
 public:
  static constexpr uint32_t kEmpty = 0;

  ByteClassSets() { number_of(ByteClasses()); }

  const ByteClasses& operator[](uint32_t number) const { return sets_[number]; }
  uint32_t number_of(const ByteClasses& classes) {
    auto known = numbers_.find(classes);
    if (known != numbers_.end()) return known->second;
    sets_.push_back(classes);
    return numbers_[classes] = uint32_t(sets_.size() - 1);
  }
  bool is_subset(uint32_t a, uint32_t b) const { return (sets_[a] & ~sets_[b]).none(); }

  // Adds a set to a list in which none is a subset of another, and removes those that the
  // new set is a subset of. Returns false, and adds nothing, if the list has a subset of
  // the new set already.
  bool add_minimal(std::vector<uint32_t>& minimal, uint32_t set) const;

 private:
  std::vector<ByteClasses> sets_;
  std::unordered_map<ByteClasses, uint32_t> numbers_;
};

// Finds the lexemes that a lexer surely reads as a terminal, although its exact set of
// terminals is unknown: it is a subset of a context. Whichever subset it is, no lazy
// terminal ends such a lexeme earlier, no other terminal takes it away, and no more bytes
// extend it than the end that is computed for the whole context has.
class Lexemes {
 public:
  // `sets`: receives the ends of the lexemes.
  Lexemes(const Network& network, ByteClassSets& sets);

  // Returns the number of a context, given as terminals in increasing order.
  uint32_t context_of(const std::vector<uint32_t>& terminals) { return lexer_.set_of(terminals); }

  // Returns the minimal ends of the lexemes of `terminal` that can follow a lexeme with the
  // end `end`.
  std::vector<uint32_t> ends_after(uint32_t context, uint32_t terminal, uint32_t end, engine::Budget& budget);

  // True if an embedded text or a token can follow a lexeme with this end. A token always
  // can; an embedded text needs a first byte that would not extend the lexeme.
  bool may_follow(uint32_t symbol, uint32_t end) const;

  size_t memory_bytes() const { return lexer_.memory_bytes(); }

 private:
  // Lexemes of a terminal with the same end.
  struct Spelling {
    uint32_t end;
    ByteClasses first;  // the classes of their first bytes
  };
  using Spellings = std::vector<std::vector<Spelling>>;  // by terminal

  // A state of the lexer, and the states that follow it.
  struct State {
    uint32_t end;                // the number of the classes that extend the lexeme
    std::vector<uint32_t> next;  // the states after them
  };

  const State& state_of(uint32_t number, engine::Budget& budget);
  const Spellings& spellings(uint32_t context, engine::Budget& budget);

  const Network& network_;
  ByteClassSets& sets_;
  Lexer lexer_;
  std::vector<uint8_t> bytes_;  // one of each class that has tokens
  std::unordered_map<uint32_t, State> states_;
  std::unordered_map<uint32_t, Spellings> spellings_;  // by context
};

}  // namespace structout::context_free
