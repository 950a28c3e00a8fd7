// Which bytes stand below each node of a vocabulary's trie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace structout::engine {

class VocabularyTrie;

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

  // Whether what follows the node is UTF-8, where a character begins after the node. The
  // last one of a token may be cut.
  bool are_characters(uint32_t node) const { return valid_from_[node] & 1; }

  size_t memory_bytes() const { return groups_.capacity() * sizeof(ByteGroups) + valid_from_.capacity(); }

 private:
  std::vector<ByteGroups> groups_;   // by node
  std::vector<uint8_t> valid_from_;  // by node: bit s says whether all below is valid after state s of UTF-8
};

}  // namespace structout::engine
