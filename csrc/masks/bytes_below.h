// Which bytes stand below each node of a vocabulary's trie, and in the tokens below.
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
  static constexpr ByteGroups kAboveAscii = ByteGroups(1) << 63;
  static constexpr ByteGroups kInvalid = ByteGroups(1) << 62;  // not UTF-8; a last character may be cut
  static constexpr uint32_t kMaxSkipped = 2;                   // bytes of a token

  // One bit.
  static ByteGroups group_of(uint8_t byte);

  explicit BytesBelow(const VocabularyTrie& trie);

  // The groups of the bytes below a node.
  ByteGroups groups(uint32_t node) const { return groups_[node]; }

  // Whether what follows the node is UTF-8, after a state of utf8::after(). The last
  // character of a token may be cut.
  bool are_characters(uint32_t node, uint8_t utf8_state) const { return (valid_from_[node] >> utf8_state & 1) != 0; }

  // The groups of each token's bytes, without the first `skipped` of them, and kInvalid if
  // what is left is not UTF-8. Tokens are in the order of the trie.
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
