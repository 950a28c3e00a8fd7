// SchemaCache: the states and masks that texts of a schema share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/step_budget_lock.h"
#include "json/automaton/configuration_table.h"
#include "json/token_masks/schema_costs.h"
#include "json/token_masks/spelled_ends.h"
#include "json/token_masks/token_walk.h"
#include "token_masks/mask_store.h"

namespace structout::json {

// States and masks are made when they are first needed, and stay as long as this does:
// an automaton that is determinized while it runs (Thompson, 1968). The cache key of a
// mask is the list of states that its computation has looked at: the top of the stack
// and, if tokens end values, some frames below it. A hit costs a lookup and the
// expansion of a stored mask; a miss costs a walk through the vocabulary
// (json/token_masks/token_walk.h).
//
// Keys and items that must differ from earlier ones are not part of the cache key. A
// mask lists the tokens that need a duplicate check, and each text reads these
// again. Threads may share it.
class SchemaCache {
 public:
  SchemaCache(std::unique_ptr<SchemaAutomaton> automaton, std::shared_ptr<const engine::VocabularyTrie> vocabulary);

  const std::shared_ptr<const engine::VocabularyTrie>& shared_vocabulary() const { return vocabulary_; }

  // See json::rehearse(). Throws SchemaError if no tokens spell a text.
  void rehearse();

  CachedConfigurationPtr start();

  // The configuration after a token or bytes. Null if they are not allowed. From a
  // configuration that texts share, a token that one of them has taken before costs a
  // lookup.
  CachedConfigurationPtr after(const CachedConfiguration& cached, uint32_t token);
  CachedConfigurationPtr after(const CachedConfiguration& cached, const std::string& bytes);
  std::string forced(const CachedConfiguration& cached);

  // Fills the mask of the tokens that may follow, without stop tokens. Returns false if
  // there are none.
  bool fill(const CachedConfiguration& cached, engine::MaskRow& row);
  bool fill(const CachedConfiguration& cached, uint32_t* words) {
    engine::MaskRow row(words, vocabulary_->row_words());
    return fill(cached, row);
  }

  // The states that the mask of a configuration depends on: the top of the stack, then the
  // frames below it that the mask looks at.
  std::vector<State> control_state(const CachedConfiguration& cached);

  // True if fill() is cheap: the mask is stored, and exact for the configuration.
  bool has_mask(const CachedConfiguration& cached);

  // The cost of a configuration, and those after its tokens: see TokenCosts. Null if none of
  // these is more than `max`.
  uint32_t cost_to_end(const CachedConfiguration& cached);
  std::shared_ptr<const engine::TokenCosts> token_costs(const CachedConfiguration& cached, uint32_t max);
  uint32_t values_to_come(const CachedConfiguration& cached);  // see SchemaCosts

  const std::vector<std::string>& annotations() const { return automaton_->schema().annotations(); }
  uint32_t num_masks() const { return store_.size(); }
  size_t num_states();
  uint64_t work();                                       // steps of the budget so far
  size_t memory_bytes() const { return memory_bytes_; }  // waits for no thread
  // See closure().
  std::optional<engine::Automaton> closed(const engine::Limits& limits);

  // The JSON strings that the schema allows, in canonical spelling: those of the automaton
  // that also have a length within the bounds. The automaton does not know the bounds,
  // unless none is above `max_copied`. Nothing if it exceeds the limits.
  struct Strings {
    engine::Automaton automaton;
    uint32_t min_length, max_length;  // in characters; Texts::kNoMaximum: no maximum
  };
  std::optional<Strings> strings(uint32_t max_copied, const engine::Limits& limits);

 private:
  friend class EmbeddedSchemaCache;

  // Locks the cache for this thread, whose StepBudget bounds the work, and updates
  // memory_bytes_ in the end.
  class Lock {
   public:
    explicit Lock(SchemaCache& cache);
    ~Lock();

   private:
    SchemaCache& cache_;
    engine::StepBudgetLock lock_;
  };
  size_t size_in_bytes() const;

  // Nodes of the vocabulary trie at which the whole text may end while tokens continue:
  // another language, in which the text is embedded, may read their rest.
  struct Continuations {
    Conditions conditions;
    std::vector<uint32_t> of_lists;            // the condition of each list
    std::vector<std::vector<uint32_t>> lists;  // nodes that have one condition
    std::vector<uint32_t> by_reading;          // nodes that only reading decides
  };

  // A cached mask, and its tokens that still depend on the text.
  struct Entry {
    const engine::Mask* mask = nullptr;  // null if it is not kept
    uint32_t number = engine::EmbeddedView::kNoEntry;
    mutable std::shared_ptr<const Continuations> continuations{};  // null until they are needed
    DuplicateChecks duplicate_checks;
    Conditions conditions;
  };

  CachedConfigurationPtr read(const CachedConfiguration& cached, const uint8_t* begin, const uint8_t* end);
  CachedConfigurationPtr with_ending(const CachedConfiguration& before, uint32_t token, CachedConfigurationPtr after);
  bool fill_row(const Configuration& config, uint32_t* words);
  bool fill_row(const Configuration& config, const Entry& entry, engine::MaskRow& row);
  State mask_state(const Configuration& config);
  std::string key_of(const Configuration& config, State top) const;
  const Entry* known_entry(const Configuration& config, State top) const;
  const Entry& computed_entry(const Configuration& config, State top);
  const Entry& entry_of(const Configuration& config, State top) {
    const Entry* known = known_entry(config, top);
    return known != nullptr ? *known : computed_entry(config, top);
  }
  // Finds the continuations of an entry. Returns false if the walk has looked at more of
  // the stack than cache keys with this top hold; from then on they hold more.
  bool find_continuations(const Configuration& config, State top, const Entry& entry);
  // True if the mask of the entry is exact for the configuration: no keys or items to
  // compare with, no token that may repeat itself, and all conditions hold.
  bool is_exact(const Configuration& config, const Entry& entry);
  // True if the mask of the entry may need corrections for the configuration: for used keys
  // and items, for tokens that may repeat themselves, for seen keys, or for bytes that are no
  // tokens.
  bool depends_on_config(const Configuration& config, const Entry& entry) const {
    return !ends_.are_all_spelled() || config.has_used() || !entry.duplicate_checks.of_themselves.empty() ||
           !entry.conditions.tokens.empty();
  }
  // Stores the mask in the cached configuration, unless it is null. Returns it.
  static const engine::Mask* keep(const CachedConfiguration& cached, const engine::Mask* mask);
  std::vector<bool> truths(const Configuration& config, const Conditions& conditions);
  // True if tokens can complete the text.
  bool has_end(const Configuration& config) { return config.has_unused() && ends_.has_end(config); }
  bool may_follow(const Configuration& config, uint32_t token);
  void forbid_seen_keys(const Configuration& config, const Conditions& conditions, engine::MaskRow& row);
  void forbid_used(const Configuration& config, const DuplicateChecks& duplicate_checks, engine::MaskRow& row);

  std::unique_ptr<SchemaAutomaton> automaton_;
  std::shared_ptr<const engine::VocabularyTrie> vocabulary_;
  engine::MaskStore store_;
  std::mutex mutex_;  // guards the automaton and what follows
  SchemaCosts costs_;
  SpelledEnds ends_;
  ConfigurationTable configs_;
  std::vector<State> mask_states_;    // for each state: mask_state(), or kNoState
  std::vector<uint32_t> num_frames_;  // for each state: frames that masks with it on top look at, itself included
  std::unordered_map<std::string, Entry> masks_;
  Entry last_;  // computed, if it is not kept
  const uint32_t number_;
  size_t duplicate_check_bytes_ = 0;
  std::vector<uint32_t> row_;
  std::atomic<size_t> memory_bytes_;
};

}  // namespace structout::json
