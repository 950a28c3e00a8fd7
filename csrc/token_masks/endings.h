// Endings of texts, and the fewest tokens that spell them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "token_masks/vocabulary.h"

namespace structout::engine {

constexpr uint32_t kUnknownCost = UINT32_MAX;  // in the place of a number of tokens: no end is known

// Bytes that complete a text. Endings share their tails as stacks do, so the ending of a
// configuration is a list of those of its frames. Tokens may cross from one part to the next.
struct Ending {
  const std::string* bytes;      // not empty
  const Ending* tail;            // null: the text is over
  std::vector<uint32_t> counts;  // from each byte on: the tokens to the end of the text, at least
};

inline uint32_t num_tokens(const Ending* ending) { return ending == nullptr ? 0 : ending->counts[0]; }

// The endings of a language over a vocabulary. Equal ones are stored once, and their tokens
// are counted once, by a shortest path backwards from the end.
class Endings {
 public:
  explicit Endings(const VocabularyTrie& vocabulary) : vocabulary_(vocabulary) {}

  const Ending* add(const std::string& bytes, const Ending* tail) {
    if (bytes.empty()) return tail;
    const std::string* stored = &*texts_.insert(bytes).first;
    const Ending*& known = known_[{stored, tail}];
    if (known != nullptr) return known;
    Ending& ending = endings_.emplace_back(Ending{stored, tail, std::vector<uint32_t>(bytes.size(), kUnknownCost)});
    for (size_t begin = bytes.size(); begin-- > 0;) {
      visit_tokens(ending, begin, [&](uint32_t, uint32_t after) {
        if (after != kUnknownCost) ending.counts[begin] = std::min(ending.counts[begin], after + 1);
      });
    }
    memory_bytes_ += sizeof ending + bytes.size() * (sizeof(uint32_t) + 1);
    return known = &ending;
  }

  // The node of the vocabulary for the first token of a spelling with the fewest tokens.
  uint32_t first_token_node(const Ending& ending) const {
    uint32_t found = VocabularyTrie::kNone;
    visit_tokens(ending, 0, [&](uint32_t node, uint32_t after) {
      if (after != kUnknownCost && after + 1 == ending.counts[0]) found = node;
    });
    return found;
  }

  size_t memory_bytes() const { return memory_bytes_; }

 private:
  // Calls visit(node, count after it) for the tokens that continue an ending from a byte on.
  template <typename Visit>
  void visit_tokens(const Ending& from, size_t byte, Visit visit) const {
    uint32_t node = VocabularyTrie::kRoot;
    for (const Ending* at = &from; at != nullptr; at = at->tail, byte = 0) {
      while (byte < at->bytes->size()) {
        node = vocabulary_.child(node, uint8_t((*at->bytes)[byte++]));
        if (node == VocabularyTrie::kNone) return;
        if (vocabulary_.first_token(node) == vocabulary_.nodes()[node].tokens_end) continue;
        visit(node, byte < at->bytes->size() ? at->counts[byte] : num_tokens(at->tail));
      }
    }
  }

  const VocabularyTrie& vocabulary_;
  std::unordered_set<std::string> texts_;
  std::deque<Ending> endings_;
  std::map<std::pair<const std::string*, const Ending*>, const Ending*> known_;
  size_t memory_bytes_ = 0;
};

}  // namespace structout::engine
