// SchemaMatcher: the configuration of one text in a schema, with rollback and drafts.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "json/token_masks/compiled_schema.h"
#include "language/drafts.h"
#include "language/matcher.h"

namespace structout::json {

// A state number names a configuration: 0 the present one, others those that drafted tokens
// lead to. Rollback takes an earlier configuration from the history and reads nothing
// again.
class SchemaMatcher final : public engine::Matcher {
 public:
  SchemaMatcher(std::shared_ptr<CompiledSchema> schema, std::vector<uint32_t> stop_tokens)
      : Matcher(schema->shared_vocabulary(), std::move(stop_tokens)),
        schema_(std::move(schema)),
        cache_(schema_->cache()),
        config_(cache_->start()) {}

  uint32_t current_state() const override { return kOwn; }
  std::vector<State> control_state() const {
    return retry_if_full([&] { return cache_->control_state(*config_); });
  }
  bool has_mask(uint32_t state) const override { return cache_->has_mask(config(state)); }

  std::unique_ptr<Matcher> copy() const override { return std::make_unique<SchemaMatcher>(*this); }

 private:
  struct Step {
    uint32_t token;  // kNoToken if it is bytes
    std::string bytes;
  };
  static constexpr uint32_t kOwn = 0;

  const CachedConfiguration& config(uint32_t state) const { return state == kOwn ? *config_ : *drafts_.config(state); }

  void prefetch_config() const override {
    __builtin_prefetch(&config_->mask);
    __builtin_prefetch(history_.data() + history_.size());
    __builtin_prefetch(steps_.data() + steps_.size());
  }

  // Calls a function that may make states. If the cache that the text shares with
  // others is full, this text gets a cache of its own, made by reading all its steps
  // again, and the function is called once more.
  template <typename Function>
  std::invoke_result_t<Function> retry_if_full(Function function) const {
    try {
      return function();
    } catch (const CacheFull&) {
      if (has_own_cache_) throw;
      read_again();
    }
    return function();
  }

  // Makes a new cache for this text, and finds its configuration, history and drafts in it.
  // Costs as much as reading the whole text.
  void read_again() const {
    std::shared_ptr<SchemaCache> cache = schema_->new_cache();
    std::vector<CachedConfigurationPtr> history;
    CachedConfigurationPtr config = cache->start();
    for (const Step& step : steps_) {
      CachedConfigurationPtr next =
          step.token == kNoToken ? cache->after(*config, step.bytes) : cache->after(*config, step.token);
      history.push_back(std::exchange(config, std::move(next)));
    }
    auto after = [&cache](const CachedConfigurationPtr& from, uint32_t token) { return cache->after(*from, token); };
    engine::Drafts<CachedConfigurationPtr> drafts = drafts_.read_again(config, after);
    cache_ = std::move(cache);
    has_own_cache_ = true;
    config_ = std::move(config);
    history_ = std::move(history);
    drafts_ = std::move(drafts);
  }

  bool advance(uint32_t token) override {
    return read({token, {}}, [&] { return cache_->after(*config_, token); });
  }

  bool advance_bytes(const std::string& bytes) override {
    return read({kNoToken, bytes}, [&] { return cache_->after(*config_, bytes); });
  }

  // Moves to the configuration after a step: the one that a draft has found for its token,
  // or the one that after() finds, which drops the drafts. Returns false if the step is not
  // allowed.
  template <typename After>
  bool read(Step step, After after) {
    make_room();
    const CachedConfigurationPtr* drafted = drafts_.follow(step.token);
    CachedConfigurationPtr next = drafted != nullptr ? *drafted : retry_if_full(after);
    if (next == nullptr) return false;
    if (drafted == nullptr) {
      make_room();  // the history may be another one
      drafts_.clear();
    }
    history_.push_back(std::exchange(config_, std::move(next)));
    steps_.push_back(std::move(step));
    return true;
  }

  void make_room() {
    engine::make_room(history_);
    engine::make_room(steps_);
  }

  // Rollback of the last steps. Drafts start at the present configuration, so they are
  // dropped.
  void drop(size_t count) override {
    if (count == 0) return;
    config_ = history_[history_.size() - count];
    history_.resize(history_.size() - count);
    steps_.resize(steps_.size() - count);
    drafts_.clear();
  }

  bool is_complete(uint32_t state) const override { return config(state).is_complete; }

  uint32_t next_state(uint32_t state, uint32_t token) const override {
    CachedConfigurationPtr next = retry_if_full([&] { return cache_->after(config(state), token); });
    return next == nullptr ? engine::kNoState : drafts_.add(state, token, std::move(next));
  }

  bool fill_text(uint32_t state, engine::MaskRow& row) const override {
    return retry_if_full([&] { return cache_->fill(config(state), row); });
  }

  uint32_t cost_to_end(uint32_t state) const override {
    return retry_if_full([&] { return cache_->cost_to_end(config(state)); });
  }

  uint32_t values_to_come(uint32_t state) const override {
    return retry_if_full([&] { return cache_->values_to_come(config(state)); });
  }

  engine::CostTable token_costs(uint32_t state, uint32_t max) const override {
    return {retry_if_full([&] { return cache_->token_costs(config(state), max); })};
  }

  std::string forced_bytes() const override {
    return retry_if_full([&] { return cache_->forced(*config_); });
  }

  const std::shared_ptr<CompiledSchema> schema_;
  std::vector<Step> steps_;  // of the text
  // read_again() replaces the members below, also from functions that are const.
  mutable std::shared_ptr<SchemaCache> cache_;
  mutable bool has_own_cache_ = false;
  mutable CachedConfigurationPtr config_;                // now
  mutable std::vector<CachedConfigurationPtr> history_;  // before each step
  mutable engine::Drafts<CachedConfigurationPtr> drafts_{kOwn};
};

}  // namespace structout::json
