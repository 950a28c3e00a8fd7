#include "token_masks/vocabulary.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/hash.h"

namespace structout::engine {

VocabularyTrie::VocabularyTrie(const std::vector<std::string>& token_bytes, bool has_string_tokens) {
  uint64_t hash = token_bytes.size();
  for (const std::string& token : token_bytes) {
    if (token.size() > UINT16_MAX) throw std::invalid_argument("a token may have 65,535 bytes at most");
    bytes_.insert(bytes_.end(), token.begin(), token.end());
    token_begin_.push_back(uint32_t(bytes_.size()));
    hash = mix(hash, hash_bytes(reinterpret_cast<const uint8_t*>(token.data()), token.size()));
  }
  fingerprint_ = hash;
  text_row_.assign(row_words(), 0);
  for (uint32_t token = 0; token < size(); ++token) {
    if (begin(token) == end(token)) continue;
    tokens_.push_back(token);
    text_row_[token >> 5] |= 1u << (token & 31);
    max_depth_ = std::max(max_depth_, uint32_t(end(token) - begin(token)));
    if (end(token) - begin(token) == 1) has_byte_[*begin(token)] = true;
  }
  std::sort(tokens_.begin(), tokens_.end(), [this](uint32_t a, uint32_t b) {
    size_t a_size = size_t(end(a) - begin(a)), b_size = size_t(end(b) - begin(b));
    int order = std::memcmp(begin(a), begin(b), std::min(a_size, b_size));
    return order != 0 ? order < 0 : a_size != b_size ? a_size < b_size : a < b;
  });
  std::vector<uint32_t> path;  // the nodes of the last token
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const uint8_t* token = begin(tokens_[i]);
    size_t length = size_t(end(tokens_[i]) - token), shared = 0;
    while (shared < length && shared < path.size() && nodes_[path[shared]].byte == token[shared]) ++shared;
    while (path.size() > shared) {
      nodes_[path.back()].end = uint32_t(nodes_.size());
      path.pop_back();
    }
    for (size_t depth = shared; depth < length; ++depth) {
      path.push_back(uint32_t(nodes_.size()));
      nodes_.push_back({0, i, uint16_t(depth), token[depth]});
    }
    nodes_.back().tokens_end = i + 1;
  }
  for (uint32_t node : path) nodes_[node].end = uint32_t(nodes_.size());
  nodes_.shrink_to_fit();
  list_children();
  bytes_below_ = std::make_unique<BytesBelow>(*this);
  if (has_string_tokens) string_tokens_ = std::make_unique<StringTokens>(*this);
}

void VocabularyTrie::list_children() {
  child_begin_.reserve(nodes_.size() + 2);
  child_bytes_.reserve(nodes_.size());
  child_nodes_.reserve(nodes_.size());
  child_begin_.push_back(0);
  auto list = [this](uint32_t first, uint32_t end) {
    for (uint32_t child = first; child < end; child = nodes_[child].end) {
      child_bytes_.push_back(nodes_[child].byte);
      child_nodes_.push_back(child);
    }
    child_begin_.push_back(uint32_t(child_nodes_.size()));
  };
  list(0, uint32_t(nodes_.size()));
  for (uint32_t node = 0; node < nodes_.size(); ++node) list(node + 1, nodes_[node].end);
}

uint32_t VocabularyTrie::child(uint32_t node, uint8_t byte) const {
  auto [first, end] = children(node);
  auto found = std::lower_bound(child_bytes_.begin() + first, child_bytes_.begin() + end, byte);
  if (found == child_bytes_.begin() + end || *found != byte) return kNone;
  return child_nodes_[size_t(found - child_bytes_.begin())];
}

size_t VocabularyTrie::memory_bytes() const {
  return bytes_.capacity() + nodes_.capacity() * sizeof(Node) + child_bytes_.capacity() +
         (child_begin_.capacity() + child_nodes_.capacity() + token_begin_.capacity() + tokens_.capacity() +
          text_row_.capacity()) *
             sizeof(uint32_t) +
         bytes_below_->memory_bytes() + (string_tokens_ == nullptr ? 0 : string_tokens_->memory_bytes());
}

}  // namespace structout::engine
