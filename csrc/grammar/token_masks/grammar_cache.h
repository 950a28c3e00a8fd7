// GrammarCache: the states and masks that texts of a grammar share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/stable_vector.h"
#include "base/step_budget_lock.h"
#include "grammar/completability/liveness.h"
#include "grammar/gss/reader.h"
#include "grammar/rules/network.h"
#include "grammar/token_masks/embedded_masks.h"
#include "grammar/token_masks/grammar_costs.h"
#include "grammar/token_masks/masks.h"
#include "token_masks/vocabulary.h"

namespace structout::context_free {

// The parts that all texts of a grammar share, however often they move to a new cache:
// the states of the lexer and the partial masks. The grammar bounds their number,
// unlike that of stacks.
struct SharedParts {
  SharedParts(std::shared_ptr<const Network> network, const engine::Limits& limits,
              std::shared_ptr<const engine::VocabularyTrie> vocabulary);

  const std::shared_ptr<const Network> network;
  const std::shared_ptr<const engine::VocabularyTrie> vocabulary;
  std::mutex mutex;  // guards the members below, and all caches
  engine::Budget budget;
  Lexer lexer;
  Completability completability;
  Masks masks;
};

// The configuration of a text, in numbers. `state` numbers its stacks and its state of the
// lexer, which texts share; the other members are its own.
struct TextConfiguration {
  uint32_t state = kNone;   // of the first LexerConfiguration
  uint32_t num_tokens = 0;  // see LexerConfiguration
  std::shared_ptr<const OtherConfigurations> others{};
  bool is_dead() const { return state == kNone; }
};

// Numbers the configurations of texts, and caches their masks. Numbers are made on first
// use, and stay valid as long as this object lives.
//
// Threads may share it. A known mask outside of embedded texts costs no lock; work on new
// states locks the shared parts.
class GrammarCache {
 public:
  // `has_own`: true if embedded languages get new caches that no other text uses.
  GrammarCache(std::shared_ptr<SharedParts> parts, bool has_own);

  // The configuration of the empty text. Dead if no text can be finished.
  TextConfiguration start();

  // The configuration after bytes. Dead if they are not allowed, or if no text can be
  // finished after them.
  TextConfiguration after(const TextConfiguration& from, const uint8_t* begin, const uint8_t* end);

  // The configuration after a token: after its bytes, or after the token matched by its id.
  // `by_id`: only the latter.
  TextConfiguration after_token(const TextConfiguration& from, uint32_t token, bool by_id);
  bool may_end(const TextConfiguration& text);

  // The bytes that must follow, up to a point where the text may end, a token may be
  // matched by its id, or two bytes are possible.
  std::string forced(const TextConfiguration& text);

  // The bytes of a shortest path to the end of the text: see EndSearch.
  std::optional<std::string> shortest_end(const TextConfiguration& text);

  // The stack tops of the text's stacks: each state on top, and the node below it. Equal
  // nodes are equal sets of stacks.
  std::vector<StackTop> tops(const TextConfiguration& text);

  // The number of a configuration. Inside embedded texts, configurations with the same mask
  // share a number.
  uint32_t number_of(const TextConfiguration& text);

  // Fills the mask of the tokens that may follow, without stop tokens. Returns true if
  // there are any.
  bool fill(const TextConfiguration& text, engine::MaskRow& row);

  // The cost of a configuration, and those after its tokens: see TokenCosts. No table if none
  // of these is more than `max`.
  uint32_t cost_to_end(const TextConfiguration& text);
  engine::CostTable token_costs(const TextConfiguration& text, uint32_t max);

  // Computes the mask by a walk over the whole trie, without partial masks and without a
  // cache of masks.
  std::vector<uint32_t> walked_row(const TextConfiguration& text);

  // True if the mask is already in a cache, so that fill() only expands it.
  bool has_mask(const TextConfiguration& text);

  // Copies configurations of another object of the same grammar to this one. Masks come
  // along only without a lexer.
  std::vector<TextConfiguration> copied(GrammarCache& from, const std::vector<TextConfiguration>& configs);

  // Copies the paths to the end that another object of the same grammar has found for
  // these configurations, so that texts which were completable there are completable here.
  void take_over_ends(GrammarCache& from, const std::vector<TextConfiguration>& configs);

  uint32_t num_states();

  // Bytes without those of the shared parts. Neither function takes a lock.
  size_t memory_bytes() const { return memory_bytes_; }
  size_t moved_bytes() const { return moved_bytes_; }  // of copied states

 private:
  friend class EmbeddedGrammarCache;  // locks the cache over several calls
  static constexpr size_t kMaxForcedBytes = 4'096;
  static constexpr size_t kMaxBytes = 64 << 20;
  static constexpr uint64_t kMaxStepsOfCall = 1 << 20;  // of the budget

  // The cached answer of may_end() for a state.
  enum class MayEnd : uint8_t { kUnknown, kNo, kYes };

  struct State {
    LexerConfiguration config;
    std::atomic<const engine::Mask*> mask;  // null if unknown or not kept
    std::atomic<MayEnd> may_end;
    MostCost most_cost;
  };

  // Locks the shared parts and the cache for this thread. Gives the budget the steps of
  // one call, and updates memory_bytes() at the end.
  class Lock {
   public:
    explicit Lock(GrammarCache& cache) : cache_(cache), lock_(cache.parts_->mutex, cache.parts_->budget) {
      cache.parts_->budget.restart(kMaxStepsOfCall);
    }
    ~Lock() {
      cache_.embedded_.unlock();
      cache_.memory_bytes_ = cache_.size_in_bytes();
    }

   private:
    GrammarCache& cache_;
    engine::StepBudgetLock lock_;
  };

  engine::Budget& budget() { return parts_->budget; }
  size_t size_in_bytes() const;
  void throw_if_full() const;
  uint32_t number_of(const LexerConfiguration& config);
  void take_over_ends(GrammarCache& from, const std::vector<TextConfiguration>& configs, PairTable& copies);
  Configuration config_of(const TextConfiguration& text) const {
    Configuration config = {states_[text.state].config, text.others};
    config.num_tokens = text.num_tokens;
    return config;
  }
  // Drops the embedded texts that cannot be completed, or after whose ends the whole text
  // cannot be finished.
  Configuration with_completable_parses(const Configuration& config);
  // The configuration of a text at the end of a token, where token limits take effect. Dead
  // if the text cannot be finished.
  TextConfiguration completable(Configuration config);
  bool has_end(const Configuration& config);
  const engine::Mask* mask_of(uint32_t state);
  const engine::Mask* mask_of_locked(uint32_t state);  // requires a Lock, as does the next one
  std::string forced_locked(Configuration config);
  void fill_by_walk(const Configuration& config, uint32_t* row);
  void fill_alone(const LexerConfiguration& config, uint32_t* row);

  const std::shared_ptr<SharedParts> parts_;
  EmbeddedUse embedded_;
  Reader reader_;
  EmbeddedMasks embedded_masks_;
  EndSearch end_search_;
  GrammarCosts costs_;
  engine::StableVector<State> states_;
  PairTable numbers_;  // by node and state of the lexer
  std::atomic<size_t> memory_bytes_{0}, moved_bytes_{0};
};

}  // namespace structout::context_free
