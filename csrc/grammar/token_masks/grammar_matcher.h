// The position of one text in a grammar with recursion.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "grammar/token_masks/compiled_grammar.h"
#include "language/drafts.h"
#include "language/matcher.h"

namespace structout::context_free {

// Matches one text. Normally its states are the numbers of GrammarCache. These do not
// suffice if a configuration can have alternatives (embedded languages, or a lexer beside
// tokens matched by id) or if tokens are counted. Then the matcher numbers configurations
// itself: kOwn is the present configuration, and the numbers above it are the
// configurations that drafts lead to.
class GrammarMatcher final : public engine::Matcher {
 public:
  // Throws std::invalid_argument if no text can be finished.
  GrammarMatcher(std::shared_ptr<CompiledGrammar> grammar, std::vector<uint32_t> stop_tokens)
      : Matcher(grammar->shared_vocabulary(), std::move(stop_tokens)),
        grammar_(std::move(grammar)),
        has_embedded_(!network().embedded().empty()),
        keeps_configs_(has_embedded_ || network().has_token_limits() ||
                       (network().has_lexer() && network().has_tokens())),
        cache_(grammar_->cache()),
        history_{cache_->start()} {
    if (history_[0].is_dead()) throw std::invalid_argument("the grammar has no text");
  }

  uint32_t current_state() const override { return keeps_configs_ ? kOwn : history_.back().state; }
  std::unique_ptr<Matcher> copy() const override { return std::make_unique<GrammarMatcher>(*this); }
  bool has_mask(uint32_t state) const override { return cache_->has_mask(config(state)); }

  // The number of the present configuration. Inside embedded texts, configurations with the
  // same mask share a number.
  uint32_t config_number() const {
    return retry_if_full([&] { return cache_->number_of(history_.back()); });
  }
  std::optional<std::string> shortest_end() const {
    return retry_if_full([&] { return cache_->shortest_end(history_.back()); });
  }
  std::vector<StackTop> tops() const { return cache_->tops(history_.back()); }
  std::vector<uint32_t> walked_row() const {
    return retry_if_full([&] { return cache_->walked_row(history_.back()); });
  }

 private:
  static_assert(engine::kNoState == kNone);
  static constexpr uint32_t kOwn = 1u << 31;

  // A step of the text: a token, or bytes.
  struct Step {
    uint32_t token = engine::kNoState;
    std::string bytes{};
  };

  const Network& network() const { return *grammar_->parts().network; }

  TextConfiguration config(uint32_t state) const {
    if (!keeps_configs_) return {state};
    return state == kOwn ? history_.back() : drafts_.config(state);
  }

  void prefetch_config() const override { __builtin_prefetch(&history_.back()); }

  // Calls a function that may add states. If it throws CacheFull, since the shared
  // cache is full, reads the text again on a cache of its own and calls the function
  // once more. Texts without embedded languages have no steps to read again; they move
  // as caches grow.
  template <typename Function>
  std::invoke_result_t<Function> retry_if_full(Function function) const {
    try {
      return function();
    } catch (const engine::CacheFull&) {
      if (has_own_cache_ || !has_embedded_) throw;
      read_again();
    }
    return function();
  }

  // Repeats all steps of the text, and its drafts, on a new cache that no other text
  // uses.
  void read_again() const {
    std::shared_ptr<GrammarCache> cache = grammar_->new_cache();
    cache->take_over_ends(*cache_, history_);
    std::vector<TextConfiguration> history = {cache->start()};
    for (const Step& step : steps_) history.push_back(completable(after(*cache, history.back(), step)));
    engine::Drafts<TextConfiguration> drafts = drafts_.read_again(
        history.back(),
        [&](const TextConfiguration& from, uint32_t token) { return completable(after(*cache, from, {token})); });
    cache_ = std::move(cache);
    has_own_cache_ = true;
    history_ = std::move(history);
    drafts_ = std::move(drafts);
  }

  // Throws if a configuration is dead that was completable on another cache: the search for
  // its end may need more work here.
  static TextConfiguration completable(TextConfiguration config) {
    if (config.is_dead()) throw std::runtime_error("the search for an end of the text takes too much work");
    return config;
  }

  TextConfiguration after(GrammarCache& cache, const TextConfiguration& from, const Step& step) const {
    if (step.token != engine::kNoState) return cache.after_token(from, step.token, is_stop(step.token));
    const uint8_t* begin = reinterpret_cast<const uint8_t*>(step.bytes.data());
    return cache.after(from, begin, begin + step.bytes.size());
  }

  // Reads a step, and keeps the configuration before it for rollback. A step along a draft
  // takes over the configuration of the draft.
  bool read(Step step) {
    make_room();
    const TextConfiguration* drafted = drafts_.follow(step.token);
    TextConfiguration next =
        drafted != nullptr ? *drafted : retry_if_full([&] { return after(*cache_, history_.back(), step); });
    if (next.is_dead()) return false;
    if (drafted == nullptr) {
      make_room();  // the history may be another one
      drafts_.clear();
    }
    history_.push_back(std::move(next));
    if (has_embedded_) steps_.push_back(std::move(step));
    if (grammar_->is_outgrown(*cache_)) {
      try {
        cache_ = grammar_->moved(*cache_, history_);
        has_own_cache_ = false;
        drafts_.clear();
      } catch (const std::bad_alloc&) {  // the text stays on the old cache until its next step
      }
    }
    return true;
  }

  void make_room() {
    engine::make_room(history_);
    if (has_embedded_) engine::make_room(steps_);
  }

  bool advance(uint32_t token) override { return read({token}); }
  bool advance_bytes(const std::string& bytes) override { return read({engine::kNoState, bytes}); }

  // Rolls back: drops the last configurations, without any new computation.
  void drop(size_t count) override {
    history_.resize(history_.size() - count);
    if (has_embedded_) steps_.resize(steps_.size() - count);
    drafts_.clear();
  }

  bool is_complete(uint32_t state) const override {
    return retry_if_full([&] { return cache_->may_end(config(state)); });
  }

  bool reads_stop(uint32_t state, uint32_t stop) const override {
    if (!network().has_tokens()) return false;
    return retry_if_full([&] { return !cache_->after_token(config(state), stop, true).is_dead(); });
  }

  uint32_t next_state(uint32_t state, uint32_t token) const override {
    TextConfiguration next = retry_if_full([&] { return after(*cache_, config(state), {token}); });
    return next.is_dead() || !keeps_configs_ ? next.state : drafts_.add(state, token, std::move(next));
  }

  bool fill_text(uint32_t state, engine::MaskRow& row) const override {
    return retry_if_full([&] { return cache_->fill(config(state), row); });
  }

  uint32_t cost_to_end(uint32_t state) const override {
    return retry_if_full([&] { return cache_->cost_to_end(config(state)); });
  }

  engine::CostTable token_costs(uint32_t state, uint32_t max) const override {
    return retry_if_full([&] { return cache_->token_costs(config(state), max); });
  }

  std::string forced_bytes() const override {
    return retry_if_full([&] { return cache_->forced(history_.back()); });
  }

  std::shared_ptr<CompiledGrammar> grammar_;
  bool has_embedded_;
  bool keeps_configs_;       // true if states are numbers of configurations: see kOwn
  std::vector<Step> steps_;  // of the text; recorded only with embedded languages
  // The members below also change in const functions, where read_again() replaces the
  // cache.
  mutable std::shared_ptr<GrammarCache> cache_;
  mutable bool has_own_cache_ = false;
  mutable std::vector<TextConfiguration> history_;  // before each step, and now
  mutable engine::Drafts<TextConfiguration> drafts_{kOwn};
};

}  // namespace structout::context_free
