// The tokens of a vocabulary, read from inside an unconstrained JSON string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace structout::engine {

class VocabularyTrie;

// Computed once for each vocabulary: the mask of a position inside an unconstrained
// string is a copy of `inner_row` and a walk over the trie of `exits`. Strings have any
// spelling (Spelling::kJson), unless another one is named.
struct StringTokens {
  explicit StringTokens(const VocabularyTrie& vocabulary);
  ~StringTokens();

  // The mask of the tokens that stay inside the string. A character or an escape may be
  // incomplete at the end.
  std::vector<uint32_t> inner_row;

  // The tokens that may stay inside a string in canonical spelling (Spelling::kJsonCanonical)
  // or leave it.
  std::vector<uint32_t> canonical_row;

  // Tokens that leave the string, by their bytes after the closing quote. `exits` is a
  // vocabulary of these different texts, for example `,` and `}` of the tokens `",` and
  // `a"}`; tokens_of_exit[i] lists the tokens that end in text i. Tokens that end with
  // the quote are in tokens_that_end.
  std::unique_ptr<const VocabularyTrie> exits;
  std::vector<std::vector<uint32_t>> tokens_of_exit;
  std::vector<uint32_t> tokens_that_end;

  // Tokens that stay inside the string, and end inside a character or an escape.
  std::vector<uint32_t> unfinished;

  // The most characters of a string in a token that ends it.
  uint32_t max_before_end = 0;

  // The most arrays and members that one token can begin.
  uint32_t max_openings = 0;

  // A token is plain if it consists of characters that are written as themselves, the
  // last of which may be incomplete. U+2028 and U+2029 are not plain: the dot of a
  // pattern excludes them.
  std::vector<uint32_t> plain_row;         // as a mask
  std::vector<uint32_t> plain;             // in the order of VocabularyTrie::tokens()
  std::vector<uint32_t> num_plain_before;  // each position of VocabularyTrie::tokens()
  std::vector<uint32_t> height;            // of each node: bytes that the longest token below it has more
  std::vector<uint8_t> is_after_plain;     // true if whole plain characters, or nothing, precede the node
  std::vector<uint64_t> classes;           // of the characters of each node's last byte and of those below

  // Tokens by the number of characters that they add to the string. An incomplete last
  // character counts as one.
  static constexpr uint32_t kNumLengths = 32;
  std::vector<std::vector<uint32_t>> rows_up_to;      // the tokens that add at most 0, 1, ... kNumLengths - 1
  std::vector<std::pair<uint32_t, uint32_t>> longer;  // the number of characters and the token, for the others

  // The nodes on the paths to all other tokens that stay inside the string or end it,
  // and for each node the number of them that come before it.
  std::vector<uint32_t> special_nodes;
  std::vector<uint32_t> num_special_before;

  size_t memory_bytes() const;
};

}  // namespace structout::engine
