// Which lexemes surely can follow each other.
#pragma once

#include <bitset>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/limits.h"
#include "context_free/lexer.h"
#include "context_free/network.h"
#include "context_free/number_tables.h"

namespace structout::context_free {

// Classes of bytes, as a lexer tells them apart.
using ByteClasses = std::bitset<256>;

// Sets of classes with numbers. The larger the set of the bytes that would extend a
// lexeme, the fewer lexemes may come after it.
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

  // Adds a set to some of which none is a subset of another: it takes the place of larger
  // ones. Returns whether there was none that is as small.
  bool add_minimal(std::vector<uint32_t>& minimal, uint32_t set) const;

 private:
  std::vector<ByteClasses> sets_;
  std::unordered_map<ByteClasses, uint32_t> numbers_;
};

// The lexemes that a lexer surely reads as a terminal, though it is not known which
// terminals it follows: among a context, the terminals that may stand beside. Whichever
// these are, no lazy one ends the lexeme earlier, and none takes it away. They would
// extend it by no more than what is counted here.
class Lexemes {
 public:
  // `sets`: gets the sets of the classes that extend lexemes.
  Lexemes(const Network& network, ByteClassSets& sets);

  // The number of a set of terminals in increasing order.
  uint32_t context_of(const std::vector<uint32_t>& terminals) { return lexer_.set_of(terminals); }

  // Where a lexeme of `terminal` may end if it follows a lexeme that ended with `end`: the
  // minimal ends.
  std::vector<uint32_t> ends_after(uint32_t context, uint32_t terminal, uint32_t end, engine::Budget& budget);

  // Whether an embedded text or a token may come after the end of a lexeme.
  bool may_follow(uint32_t symbol, uint32_t end) const;

  size_t memory_bytes() const { return lexer_.memory_bytes(); }

 private:
  // Lexemes with the same end.
  struct Spelling {
    uint32_t end;
    ByteClasses first;  // how they begin
  };
  using Spellings = std::vector<std::vector<Spelling>>;  // by terminal

  // A state of the lexer, with what can be read from it.
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
