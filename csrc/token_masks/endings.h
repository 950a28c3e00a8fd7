// Endings of texts, and the fewest tokens that spell them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "token_masks/vocabulary.h"

namespace structout::engine {

constexpr uint32_t kUnknownCost = UINT32_MAX;  // in the place of a number of tokens: no end is known

// The sum of costs, where kUnknownCost is infinite.
inline uint32_t cost_sum(uint32_t a, uint32_t b) {
  return a == kUnknownCost || b == kUnknownCost || a >= kUnknownCost - b ? kUnknownCost : a + b;
}

// A part of what completes a text, and the endings that may follow it. Endings share their
// tails as stacks do, so that of a configuration is a list of those of its frames. Tokens may
// cross from one part to the next, but neither into a jump nor out of one.
struct Ending {
  enum class Kind : uint8_t {
    kBytes,
    kJump,    // tokens in a number that is known, whatever their bytes
    kChoice,  // nothing by itself
  };
  Kind kind;
  const std::string* bytes;          // of kBytes, not empty; else null
  std::vector<const Ending*> tails;  // one, or those of a choice; null: the text is over
  std::vector<uint32_t> counts;  // from each byte on, or from the begin: the tokens to the end of the text, at least

  const Ending* tail() const { return tails[0]; }
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
    Ending& ending = stored_as(Ending::Kind::kBytes, stored, 0, {tail});
    if (!ending.counts.empty()) return &ending;
    ending.counts.assign(bytes.size(), kUnknownCost);
    for (size_t begin = bytes.size(); begin-- > 0;) {
      visit_tokens(ending, begin, [&](uint32_t, uint32_t after) {
        if (after != kUnknownCost) ending.counts[begin] = std::min(ending.counts[begin], after + 1);
      });
    }
    memory_bytes_ += bytes.size() * (sizeof(uint32_t) + 1);
    return &ending;
  }

  const Ending* jump(uint32_t num_tokens, const Ending* tail) {
    Ending& ending = stored_as(Ending::Kind::kJump, nullptr, num_tokens, {tail});
    ending.counts = {cost_sum(num_tokens, engine::num_tokens(tail))};
    return &ending;
  }

  // One of these, of which there is one at least.
  const Ending* any_of(std::vector<const Ending*> endings) {
    std::sort(endings.begin(), endings.end());
    endings.erase(std::unique(endings.begin(), endings.end()), endings.end());
    if (endings.size() == 1) return endings[0];
    Ending& ending = stored_as(Ending::Kind::kChoice, nullptr, 0, endings);
    if (ending.counts.empty()) {
      auto has_less = [](const Ending* a, const Ending* b) { return num_tokens(a) < num_tokens(b); };
      ending.counts = {num_tokens(*std::min_element(endings.begin(), endings.end(), has_less))};
    }
    return &ending;
  }

  // The node of the vocabulary for the first token of a spelling with the fewest tokens, from
  // one of the ending's own bytes on. kNone if there is none.
  uint32_t first_token_node(const Ending& ending, size_t byte = 0) const {
    uint32_t found = VocabularyTrie::kNone;
    visit_tokens(ending, byte, [&](uint32_t node, uint32_t after) {
      if (after != kUnknownCost && after + 1 == ending.counts[byte]) found = node;
    });
    return found;
  }

  size_t memory_bytes() const { return memory_bytes_; }

 private:
  // The kind, the text in texts_, the tokens of a jump, and the tails.
  using Key = std::tuple<Ending::Kind, const std::string*, uint32_t, std::vector<const Ending*>>;

  // Without counts if it is new.
  Ending& stored_as(Ending::Kind kind, const std::string* bytes, uint32_t num_jumped,
                    std::vector<const Ending*> tails) {
    Ending*& known = known_[{kind, bytes, num_jumped, tails}];
    if (known != nullptr) return *known;
    memory_bytes_ += 2 * (sizeof *known + tails.size() * sizeof tails[0]);  // with its key, roughly
    return *(known = &endings_.emplace_back(Ending{kind, bytes, std::move(tails), {}}));
  }

  // Calls visit(node, count after it) for the tokens that continue an ending from a byte on.
  template <typename Visit>
  void visit_tokens(const Ending& ending, size_t byte, Visit visit) const {
    std::set<std::pair<const Ending*, uint32_t>> seen;  // choices, with the node before them
    auto follow = [&](auto& self, const Ending* at, size_t byte, uint32_t node) -> void {
      for (; at != nullptr && at->kind == Ending::Kind::kBytes; at = at->tail(), byte = 0) {
        while (byte < at->bytes->size()) {
          node = vocabulary_.child(node, uint8_t((*at->bytes)[byte++]));
          if (node == VocabularyTrie::kNone) return;
          if (vocabulary_.first_token(node) == vocabulary_.nodes()[node].tokens_end) continue;
          visit(node, byte < at->bytes->size() ? at->counts[byte] : num_tokens(at->tail()));
        }
      }
      if (at == nullptr || at->kind == Ending::Kind::kJump || !seen.insert({at, node}).second) return;
      for (const Ending* tail : at->tails) self(self, tail, 0, node);
    };
    follow(follow, &ending, byte, VocabularyTrie::kRoot);
  }

  const VocabularyTrie& vocabulary_;
  std::unordered_set<std::string> texts_;
  std::deque<Ending> endings_;
  std::map<Key, Ending*> known_;
  size_t memory_bytes_ = 0;
};

}  // namespace structout::engine
