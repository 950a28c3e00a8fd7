// The bytes of all tokens of a tokenizer, as a trie that all grammars of the tokenizer
// share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "token_masks/bytes_below.h"
#include "token_masks/mask_row.h"
#include "token_masks/string_tokens.h"
#include "token_masks/unique_number.h"

namespace structout::engine {

class VocabularyTrie {
 public:
  // A node stands for the bytes on the way to it. Nodes are in the order of a
  // depth-first search, by increasing bytes.
  struct Node {
    uint32_t end;         // the first node that is not below this one
    uint32_t tokens_end;  // its tokens are tokens()[first_token() ... tokens_end]
    uint16_t depth;       // of the root's children: 0
    uint8_t byte;         // the last one
  };

  // Entries without bytes are never allowed inside a text.
  //
  // Throws std::invalid_argument for a token of more than 65,535 bytes.
  explicit VocabularyTrie(const std::vector<std::string>& token_bytes, bool has_string_tokens = true);

  uint32_t size() const { return uint32_t(token_begin_.size() - 1); }
  uint32_t row_words() const { return (size() + 31) / 32; }
  uint32_t max_depth() const { return max_depth_; }  // bytes of the longest token

  const std::vector<Node>& nodes() const { return nodes_; }
  uint32_t first_token(uint32_t node) const { return node == 0 ? 0 : nodes_[node - 1].tokens_end; }  // in tokens()

  static constexpr uint32_t kRoot = UINT32_MAX, kNone = UINT32_MAX;

  // The node that continues from another, or from the root, with a byte. kNone if there is
  // none.
  uint32_t child(uint32_t node, uint8_t byte) const;

  // Calls visit(node, byte, depth) for the children of a node, or of the root, and below
  // those for which it returns true, depth first. Nodes lie far apart in memory, so
  // visit() should look at the byte before it looks at a node.
  template <typename Visit>
  void visit_below(uint32_t node, Visit visit) const {
    uint32_t first_depth = node == kRoot ? 0 : nodes_[node].depth + 1;
    std::vector<std::pair<uint32_t, uint32_t>> left = {children(node)};  // at each depth
    while (!left.empty()) {
      auto& [next, end] = left.back();
      if (next == end) {
        left.pop_back();
        continue;
      }
      uint32_t index = next++, child = child_nodes_[index];
      if (visit(child, child_bytes_[index], first_depth + uint32_t(left.size()) - 1)) left.push_back(children(child));
    }
  }

  const std::vector<uint32_t>& tokens() const { return tokens_; }

  // The bytes of a token, which must be less than size().
  const uint8_t* begin(uint32_t token) const { return bytes_.data() + token_begin_[token]; }
  const uint8_t* end(uint32_t token) const { return bytes_.data() + token_begin_[token + 1]; }

  // The mask of all tokens with bytes.
  const std::vector<uint32_t>& text_row() const { return text_row_; }
  // text_row() as a base that masks are stored as a diff against.
  BaseRow text_base() const { return {RowKey{number_} << 32, text_row_.data()}; }
  bool has_byte(uint8_t byte) const { return has_byte_[byte]; }  // as a token of its own
  bool has_all_bytes() const { return std::find(has_byte_, has_byte_ + 256, false) == has_byte_ + 256; }

  // Exists only if `has_string_tokens` was true in the constructor.
  const StringTokens& string_tokens() const { return *string_tokens_; }

  const BytesBelow& bytes_below() const { return *bytes_below_; }

  // Equal for equal vocabularies.
  uint64_t fingerprint() const { return fingerprint_; }
  size_t memory_bytes() const;

 private:
  void list_children();
  // First, and one past the last, in child_nodes_.
  std::pair<uint32_t, uint32_t> children(uint32_t node) const {
    uint32_t number = node + 1;  // 0 for the root
    return {child_begin_[number], child_begin_[number + 1]};
  }

  std::vector<uint8_t> bytes_;
  std::vector<uint32_t> token_begin_ = {0};
  std::vector<Node> nodes_;
  std::vector<uint32_t> child_begin_;  // of the root, then of each node
  std::vector<uint32_t> child_nodes_;
  std::vector<uint8_t> child_bytes_;  // of each of them
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> text_row_;
  const uint32_t number_ = unique_number();
  bool has_byte_[256] = {};
  uint32_t max_depth_ = 0;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<const StringTokens> string_tokens_;
  std::unique_ptr<const BytesBelow> bytes_below_;
};

}  // namespace structout::engine
