// Which bytes stand below each node of a vocabulary's trie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace structout::engine {

class VocabularyTrie;

// UTF-8 as an automaton: state 0 is between characters.
namespace utf8 {

constexpr uint8_t kBetween = 0, kNumStates = 8, kInvalid = kNumStates;

// The state after a byte.
constexpr uint8_t after(uint8_t state, uint8_t byte) {
  enum : uint8_t { kOneMore = 1, kTwoMore, kThreeMore, kAfterE0, kAfterED, kAfterF0, kAfterF4 };
  auto in = [byte](uint8_t first, uint8_t last) { return first <= byte && byte <= last; };
  switch (state) {
    case kBetween:
      if (byte < 0x80) return kBetween;
      if (in(0xC2, 0xDF)) return kOneMore;
      if (byte == 0xE0) return kAfterE0;
      if (byte == 0xED) return kAfterED;
      if (in(0xE1, 0xEF)) return kTwoMore;
      if (byte == 0xF0) return kAfterF0;
      if (byte == 0xF4) return kAfterF4;
      return in(0xF1, 0xF3) ? uint8_t(kThreeMore) : kInvalid;
    case kOneMore:
      return in(0x80, 0xBF) ? kBetween : kInvalid;
    case kTwoMore:
      return in(0x80, 0xBF) ? uint8_t(kOneMore) : kInvalid;
    case kThreeMore:
      return in(0x80, 0xBF) ? uint8_t(kTwoMore) : kInvalid;
    case kAfterE0:
      return in(0xA0, 0xBF) ? uint8_t(kOneMore) : kInvalid;
    case kAfterED:
      return in(0x80, 0x9F) ? uint8_t(kOneMore) : kInvalid;
    case kAfterF0:
      return in(0x90, 0xBF) ? uint8_t(kTwoMore) : kInvalid;
    case kAfterF4:
      return in(0x80, 0x8F) ? uint8_t(kTwoMore) : kInvalid;
  }
  return kInvalid;
}

}  // namespace utf8

// Sets of groups of bytes: lower case, upper case, digits, and other characters of ASCII
// one by one; bytes from 0x80 on are one group.
using ByteGroups = uint64_t;

class BytesBelow {
 public:
  static constexpr uint8_t kNumGroups = 64, kAboveAscii = kNumGroups - 1;

  static uint8_t group_of(uint8_t byte);

  explicit BytesBelow(const VocabularyTrie& trie);

  // The groups of the bytes below a node.
  ByteGroups groups(uint32_t node) const { return groups_[node]; }

  // Whether what follows the node is UTF-8, where a character begins behind the node. The
  // last one of a token may be cut.
  bool are_characters(uint32_t node) const { return valid_from_[node] & 1; }

  size_t memory_bytes() const { return groups_.capacity() * sizeof(ByteGroups) + valid_from_.capacity(); }

 private:
  std::vector<ByteGroups> groups_;   // by node
  std::vector<uint8_t> valid_from_;  // by node: bit s says whether all below is valid behind state s of UTF-8
};

}  // namespace structout::engine
