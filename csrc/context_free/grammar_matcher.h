// The position of one text in a grammar with recursion.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "context_free/grammar_index.h"
#include "step/matcher.h"

namespace structout::context_free {

// Its states are those of GrammarStates.
class GrammarMatcher final : public engine::Matcher {
 public:
  // Throws std::invalid_argument if no text can be finished.
  GrammarMatcher(std::shared_ptr<GrammarIndex> index, std::vector<uint32_t> stop_tokens)
      : Matcher(index->shared_vocabulary(), std::move(stop_tokens)),
        index_(std::move(index)),
        states_(index_->states()),
        number_(index_->number_with(this->stop_tokens())),
        history_{states_->start()} {
    if (history_[0] == kNone) throw std::invalid_argument("the grammar has no text");
  }

  uint32_t current_state() const override { return history_.back(); }
  std::optional<std::string> shortest_end() const { return states_->shortest_end(current_state()); }
  std::vector<Item> items() const { return states_->items(current_state()); }
  std::vector<uint32_t> walked_row() const { return states_->walked_row(current_state()); }
  bool has_mask(uint32_t state) const override { return states_->has_mask(state); }
  std::unique_ptr<Matcher> copy() const override { return std::make_unique<GrammarMatcher>(*this); }

 private:
  static_assert(engine::kNoState == kNone);

  bool read(const uint8_t* begin, const uint8_t* end) {
    uint32_t next = states_->after(current_state(), begin, end);  // asked where the mask was filled
    if (next == kNone) return false;
    history_.push_back(next);
    if (index_->is_outgrown(*states_)) states_ = index_->moved(*states_, history_);
    return true;
  }

  bool advance(uint32_t token) override {
    const uint8_t *begin = vocabulary().begin(token), *end = vocabulary().end(token);
    return begin != end && read(begin, end);
  }

  bool advance_bytes(const std::string& bytes) override {
    const uint8_t* begin = reinterpret_cast<const uint8_t*>(bytes.data());
    return read(begin, begin + bytes.size());
  }

  void drop(size_t count) override { history_.resize(history_.size() - count); }
  bool is_complete(uint32_t state) const override { return states_->may_end(state); }

  uint32_t next_state(uint32_t state, uint32_t token) const override {
    const uint8_t *begin = vocabulary().begin(token), *end = vocabulary().end(token);
    return begin == end ? kNone : states_->after(state, begin, end);
  }

  bool fill_text(uint32_t state, uint32_t* row) const override { return states_->fill(state, row); }

  uint64_t key_of_mask(uint32_t state) const override {
    const engine::Mask* mask = states_->mask(state);
    if (mask == nullptr) return 0;
    return uint64_t(number_) << 32 | uint64_t(mask->slot) << 1 | uint64_t(is_complete(state));
  }

  std::string forced_bytes() const override { return states_->forced(current_state()); }

  std::shared_ptr<GrammarIndex> index_;
  std::shared_ptr<GrammarStates> states_;
  uint32_t number_;                // of the index with these stop tokens
  std::vector<uint32_t> history_;  // the states before each step, and now
};

}  // namespace structout::context_free
