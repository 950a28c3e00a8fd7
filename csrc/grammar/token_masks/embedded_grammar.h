// Grammars as embedded languages: their texts are parts of texts of another language.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/gss/number_tables.h"
#include "grammar/token_masks/compiled_grammar.h"
#include "language/embedded.h"

namespace structout::context_free {

// Offers a GrammarCache as the cache of an embedded language. Texts of the grammar
// alone may use it at the same time. The grammar keeps its own lexer and its own
// ignored texts; the surrounding language does not affect them.
//
// Views are cached by the number of the configuration and by the bytes that may follow the
// embedded text. A miss costs a walk over the vocabulary's trie.
class EmbeddedGrammarCache final : public engine::EmbeddedCache {
 public:
  // `continuation_bytes`: a counter that the bytes of the cached views are added to.
  EmbeddedGrammarCache(std::shared_ptr<CompiledGrammar> grammar, std::shared_ptr<GrammarCache> cache,
                       std::shared_ptr<std::atomic<size_t>> continuation_bytes);
  ~EmbeddedGrammarCache() override { *continuation_bytes_ -= own_continuation_bytes_; }

  const std::shared_ptr<GrammarCache>& cache() const { return cache_; }
  engine::ByteSet first_bytes();  // requires lock()

  void lock() override;
  void unlock() noexcept override;
  engine::ConfigurationPtr start() override;
  engine::ConfigurationPtr after(const engine::EmbeddedConfiguration& config, const uint8_t*& at,
                                 const uint8_t* end) override;
  bool may_end(const engine::EmbeddedConfiguration& config) override;
  bool may_continue(const engine::EmbeddedConfiguration& config) override;
  bool has_end(const engine::EmbeddedConfiguration& config) override;
  bool are_equal(const engine::EmbeddedConfiguration& a, const engine::EmbeddedConfiguration& b) override;
  engine::EmbeddedView view(const engine::EmbeddedConfiguration& config, const engine::ByteSet& followers) override;
  std::optional<engine::EmbeddedView> known_view(const engine::EmbeddedConfiguration& config,
                                                 const engine::ByteSet& followers) override;
  void fill(const engine::EmbeddedConfiguration& config, uint32_t* row) override;
  void expand(const engine::Mask& mask, engine::MaskRow& row) override;
  std::string forced(const engine::EmbeddedConfiguration& config) override;
  std::optional<std::string> short_end(const engine::EmbeddedConfiguration& config, uint64_t& work) override;
  uint32_t cost_to_end(const engine::EmbeddedConfiguration& config) override;
  uint32_t most_cost(const engine::EmbeddedConfiguration& config, uint32_t max) override;
  engine::CostTable token_costs(const engine::EmbeddedConfiguration& config) override;
  uint32_t number() const override { return number_; }

 private:
  using Nodes = std::vector<std::vector<uint32_t>>;
  static constexpr size_t kMaxContinuationBytes = 16 << 20;

  // The cached view of the configurations with one number, for one set of bytes that may
  // follow.
  struct Entry {
    const engine::Mask* mask;
    std::shared_ptr<const Nodes> continuations;  // one list
  };

  // Returns a number that only configurations with the same mask and continuations share.
  // Returns nothing if these depend on what embedded texts inside of this one remember.
  std::optional<uint32_t> entry_number(const Configuration& config);
  bool can_continue(const Configuration& config);

  // Returns the trie nodes after which the embedded text may end inside a token: with one
  // of `followers` as the next byte.
  std::vector<uint32_t> continuations_of(const Configuration& config, const engine::ByteSet& followers);
  static engine::EmbeddedView view_of(uint32_t number, const Entry& entry);

  const std::shared_ptr<CompiledGrammar> grammar_;
  const std::shared_ptr<GrammarCache> cache_;
  const uint32_t number_;
  const std::shared_ptr<std::atomic<size_t>> continuation_bytes_;
  size_t own_continuation_bytes_ = 0;
  std::unique_ptr<GrammarCache::Lock> lock_;  // of the thread that called lock()
  std::unordered_map<engine::ByteSet, std::unordered_map<uint32_t, Entry>> entries_;  // by followers and number
  PairTable may_continue_;  // by node and state of the lexer: 1 if anything may follow, else 0
};

// A grammar as an embedded language. It works on bytes alone: it can neither match tokens
// by their ids nor count them. The empty text does not belong to it, even if the grammar
// matches it.
class EmbeddedGrammar final : public engine::EmbeddedLanguage {
 public:
  // Throws PatternError if the grammar matches tokens by their ids, or has max_tokens.
  explicit EmbeddedGrammar(std::shared_ptr<CompiledGrammar> grammar);

  const engine::VocabularyTrie& embedded_vocabulary() const override { return *grammar_->shared_vocabulary(); }
  const engine::ByteSet& first_bytes() const override { return first_bytes_; }
  std::shared_ptr<engine::EmbeddedCache> embedded_cache() override;
  std::shared_ptr<engine::EmbeddedCache> new_embedded_cache() override { return embedded(grammar_->new_cache()); }
  size_t memory_bytes() override { return grammar_->memory_bytes() + *continuation_bytes_; }

 private:
  std::shared_ptr<EmbeddedGrammarCache> embedded(std::shared_ptr<GrammarCache> cache) const {
    return std::make_shared<EmbeddedGrammarCache>(grammar_, std::move(cache), continuation_bytes_);
  }

  const std::shared_ptr<CompiledGrammar> grammar_;
  const std::shared_ptr<std::atomic<size_t>> continuation_bytes_ = std::make_shared<std::atomic<size_t>>(0);
  engine::ByteSet first_bytes_;
  std::mutex mutex_;                                // guards embedded_
  std::shared_ptr<EmbeddedGrammarCache> embedded_;  // wraps the cache that another language used last
};

}  // namespace structout::context_free
