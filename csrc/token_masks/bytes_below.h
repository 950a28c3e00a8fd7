// The groups of bytes below each node of a vocabulary's trie, and in each token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace structout::engine {

class VocabularyTrie;

// A set of byte groups, one bit a group: lower case, upper case, digits, control
// characters, every other character of ASCII alone, and all bytes from 0x80 on.
// BytesBelow::kInvalid is a bit of its own.
using ByteGroups = uint64_t;

class BytesBelow {
 public:
  static constexpr ByteGroups kAboveAscii = ByteGroups(1) << 63;
  static constexpr ByteGroups kInvalid = ByteGroups(1) << 62;  // not UTF-8; a last character may be cut
  static constexpr uint32_t kMaxSkipped = 2;                   // bytes of a token

  // The group of a byte: a set of one bit.
  static ByteGroups group_of(uint8_t byte);

  explicit BytesBelow(const VocabularyTrie& trie);

  // The groups of the bytes below a node.
  ByteGroups groups(uint32_t node) const { return groups_[node]; }

  // True if all bytes below the node, read from a state of utf8::after(), are valid
  // UTF-8. The last character of a token may be incomplete.
  bool are_characters(uint32_t node, uint8_t utf8_state) const { return (valid_from_[node] >> utf8_state & 1) != 0; }

  // The groups of each token's bytes after the first `skipped`, which is at most
  // kMaxSkipped, and kInvalid if these bytes are not UTF-8. Tokens are in the order of the
  // trie.
  const ByteGroups* of_tokens(uint32_t skipped) const { return of_tokens_[skipped].data(); }

  size_t memory_bytes() const {
    return (groups_.capacity() + of_tokens_.size() * of_tokens_[0].capacity()) * sizeof(ByteGroups) +
           valid_from_.capacity();
  }

 private:
  void read_tokens(const VocabularyTrie& trie);

  std::vector<ByteGroups> groups_;   // by node
  std::vector<uint8_t> valid_from_;  // by node: bit s says whether all below is valid after state s of UTF-8
  std::array<std::vector<ByteGroups>, kMaxSkipped + 1> of_tokens_;
};

}  // namespace structout::engine
