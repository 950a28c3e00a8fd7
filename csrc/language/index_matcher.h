// The position of one text in a token index.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "language/matcher.h"
#include "token_masks/token_index.h"

namespace structout::engine {

// Its states are those of the index's automaton, so a state stays valid after the
// matcher moves. The history is one state for each step: a rollback truncates a vector.
class IndexMatcher final : public Matcher {
 public:
  // Throws std::invalid_argument if the automaton accepts nothing, or if a stop token is
  // not in the vocabulary.
  IndexMatcher(std::shared_ptr<const TokenIndex> index, std::vector<uint32_t> stop_tokens)
      : Matcher(index->shared_vocabulary(), std::move(stop_tokens)), index_(std::move(index)) {
    if (index_->num_states() == 0) throw std::invalid_argument("the automaton accepts nothing");
  }

  uint32_t current_state() const override { return states_.back(); }
  bool has_mask(uint32_t state) const override { return index_->has_mask(state); }
  std::unique_ptr<Matcher> copy() const override { return std::make_unique<IndexMatcher>(*this); }

 private:
  static_assert(kNoState == kDead);

  void prefetch_config() const override { __builtin_prefetch(&states_.back()); }

  bool push(uint32_t state) {
    if (state == kDead) return false;
    states_.push_back(state);
    return true;
  }

  bool advance(uint32_t token) override { return push(index_->next(current_state(), token)); }

  bool advance_bytes(const std::string& bytes) override {
    uint32_t state = current_state();
    for (size_t i = 0; i < bytes.size() && state != kDead; ++i) {
      state = index_->automaton().next(state, uint8_t(bytes[i]));
    }
    return push(state);
  }

  void drop(size_t count) override { states_.resize(states_.size() - count); }
  bool is_complete(uint32_t state) const override { return index_->accepts(state); }
  uint32_t next_state(uint32_t state, uint32_t token) const override { return index_->next(state, token); }
  bool fill_text(uint32_t state, MaskRow& row) const override { return !index_->fill(state, row); }

  std::string forced_bytes() const override { return index_->forced(current_state()); }

  uint32_t cost_to_end(uint32_t state) const override { return index_->cost_to_end(state); }
  CostTable token_costs(uint32_t state, uint32_t max) const override { return {index_->token_costs(state, max)}; }

  std::shared_ptr<const TokenIndex> index_;
  std::vector<uint32_t> states_ = {0};  // before each step of the text, and now
};

}  // namespace structout::engine
