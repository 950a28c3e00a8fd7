// A grammar over the tokens of a vocabulary.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "grammar/token_masks/grammar_cache.h"

namespace structout::context_free {

// Owns the network, and the GrammarCache that texts of the grammar share. A cache only
// grows. Once it is too large, new texts begin with a new one, present texts move to
// that after their next step, and the old one is freed with the last text that has not
// moved. So a grammar serves any number of texts, of any length.
//
// Threads may share it.
class CompiledGrammar {
 public:
  static constexpr size_t kMaxGrowth = 8 << 20;

  // `max_growth`: bytes that texts may add to a cache before they move to a new one.
  //
  // Throws std::invalid_argument if an embedded language is over another vocabulary.
  CompiledGrammar(std::shared_ptr<const Network> network, const engine::Limits& limits,
                  std::shared_ptr<const engine::VocabularyTrie> vocabulary, size_t max_growth = kMaxGrowth);

  const std::shared_ptr<const engine::VocabularyTrie>& shared_vocabulary() const { return parts_->vocabulary; }
  const SharedParts& parts() const { return *parts_; }

  // Returns the present cache, after replacing it if it is outgrown.
  std::shared_ptr<GrammarCache> cache();

  // Returns a new cache that no other text uses, with new ones of embedded languages as
  // well.
  std::shared_ptr<GrammarCache> new_cache() const { return std::make_shared<GrammarCache>(parts_, true); }

  // True if texts on this cache should move to another. Bytes of configurations that moved
  // here raise the threshold by twice their size, so that a move pays off before the next
  // one.
  bool is_outgrown(const GrammarCache& cache) const {
    return cache.memory_bytes() > max_growth_ + 2 * cache.moved_bytes();
  }

  // Replaces the configurations of a text by copies on the present cache, and returns that
  // cache.
  std::shared_ptr<GrammarCache> moved(GrammarCache& from, std::vector<TextConfiguration>& configs);

  // True if no text can be finished: then even the configuration of the empty text is dead.
  bool is_empty() { return cache()->start().is_dead(); }

  // Returns the bytes of all caches in use, of embedded languages, of the network, and
  // of the lexer and the masks that caches share.
  size_t memory_bytes();

 private:
  const std::shared_ptr<SharedParts> parts_;
  const size_t max_growth_;
  std::mutex mutex_;  // guards the members below
  std::shared_ptr<GrammarCache> cache_;
  std::vector<std::weak_ptr<GrammarCache>> earlier_;
};

}  // namespace structout::context_free
