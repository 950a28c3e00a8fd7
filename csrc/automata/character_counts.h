// The numbers of characters that lead from the states of an automaton to its end.
#pragma once

#include <cstdint>
#include <vector>

#include "automata/automaton.h"

namespace structout::engine {

// Tells after how many characters a text may end, for each state of an automaton over UTF-8.
// A character counts at its first byte. The set of states with an end after exactly k
// characters follows from that for k - 1, so the sets repeat from some k on: the lengths of a
// regular language are ultimately periodic.
//
// Takes the states times the numbers of characters up to the first repetition.
class CharacterCounts {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Throws LimitError if the sets take long to repeat.
  CharacterCounts(const Automaton& automaton, Budget& budget);

  // The least number of characters, at least `min`, after which a text may end. kNone if
  // there is none.
  uint32_t least(uint32_t state, uint32_t min) const;

  // The most that least(state, 0) is for any state.
  uint32_t most() const { return most_; }

  // The sets of states repeat with this period, from num_irregular() characters on.
  uint32_t num_irregular() const { return num_irregular_; }
  uint32_t period() const { return period_; }

  // The first byte of a text with exactly this number of characters more. There must be one
  // that is not empty. ASCII is preferred.
  uint8_t byte_towards(const Automaton& automaton, uint32_t state, uint32_t num_characters) const;

  size_t memory_bytes() const { return least_.capacity() * sizeof(uint32_t); }

  static bool begins_character(uint8_t byte) { return (byte & 0xC0) != 0x80; }

 private:
  const uint32_t num_states_;
  uint32_t num_irregular_ = 0, period_ = 1, most_ = 0;
  std::vector<uint32_t> least_;  // by number of characters, then by state
};

}  // namespace structout::engine
