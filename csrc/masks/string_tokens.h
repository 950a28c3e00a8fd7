// How the tokens of a vocabulary go on inside a JSON string that may contain anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace structout::engine {

class VocabularyTrie;

struct StringTokens {
  explicit StringTokens(const VocabularyTrie& vocabulary);
  ~StringTokens();

  // Tokens that stay inside the string, as a mask. A character or an escape may be
  // incomplete at the end.
  std::vector<uint32_t> inner_row;

  // What stands after the first quote that ends the string: the different texts, as a
  // vocabulary, and the tokens that end in each. Some tokens end with the quote.
  std::unique_ptr<const VocabularyTrie> exits;
  std::vector<std::vector<uint32_t>> tokens_of_exit;
  std::vector<uint32_t> tokens_that_end;

  // A token is plain if it consists of characters that are written as themselves, the
  // last of which may be incomplete. U+2028 and U+2029 are not plain: the dot of a
  // pattern excludes them.
  std::vector<uint32_t> plain_row;         // as a mask
  std::vector<uint32_t> plain;             // in the order of VocabularyTrie::tokens()
  std::vector<uint32_t> num_plain_before;  // each position of VocabularyTrie::tokens()
  std::vector<uint32_t> height;            // of each node: bytes that the longest token below it has more
  std::vector<uint8_t> is_after_plain;     // whether whole plain characters, or nothing, lead to each node
  std::vector<uint64_t> classes;           // of the characters of each node's last byte and of those below

  // How many characters each token adds to the string, one of which may be incomplete.
  static constexpr uint32_t kNumLengths = 32;
  std::vector<std::vector<uint32_t>> rows_up_to;      // the tokens that add at most 0, 1, ... kNumLengths - 1
  std::vector<std::pair<uint32_t, uint32_t>> longer;  // the number of characters and the token, for the others

  // The nodes on the way to the other tokens that stay inside the string or end it, and
  // how many of them come before each node.
  std::vector<uint32_t> special_nodes;
  std::vector<uint32_t> num_special_before;

  size_t memory_bytes() const;
};

}  // namespace structout::engine
