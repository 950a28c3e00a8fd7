// The position of one text in a schema.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsm/matcher.h"
#include "json/schema_index.h"

namespace structout::json {

// Its states are numbers of positions: 0 for the present one, then those that drafts
// lead to.
class SchemaMatcher final : public fsm::Matcher {
 public:
  SchemaMatcher(std::shared_ptr<SchemaIndex> index, std::vector<uint32_t> stop_tokens)
      : Matcher(index->shared_vocabulary(), std::move(stop_tokens)),
        index_(std::move(index)),
        number_(index_->number_with(this->stop_tokens())),
        history_{index_->start()} {}

  const SchemaIndex& index() const { return *index_; }
  uint32_t current_state() const override { return 0; }
  std::vector<State> control_state() const { return index_->control_state(history_.back()); }
  bool has_mask(uint32_t state) const override { return index_->has_mask(position(state)); }

  std::unique_ptr<Matcher> copy() const override { return std::make_unique<SchemaMatcher>(*this); }

 private:
  const Position& position(uint32_t state) const { return state == 0 ? history_.back() : drafted_[state - 1]; }

  bool push(Position position, bool is_allowed) {
    if (!is_allowed) return false;
    history_.push_back(std::move(position));
    drafted_.clear();
    return true;
  }

  bool advance(uint32_t token) override {
    Position next = history_.back();
    bool is_allowed = index_->read(next, token);
    return push(std::move(next), is_allowed);
  }

  bool advance_bytes(const std::string& bytes) override {
    Position next = history_.back();
    bool is_allowed = index_->read(next, bytes);
    return push(std::move(next), is_allowed);
  }

  void drop(size_t count) override {
    history_.erase(history_.end() - ptrdiff_t(count), history_.end());
    drafted_.clear();
  }

  bool is_complete(uint32_t state) const override { return index_->is_complete(position(state)); }

  uint32_t next_state(uint32_t state, uint32_t token) const override {
    Position next = position(state);
    if (!index_->read(next, token)) return fsm::kNoState;
    drafted_.push_back(std::move(next));
    return uint32_t(drafted_.size());
  }

  bool fill_text(uint32_t state, uint32_t* row) const override { return index_->fill(position(state), row); }

  uint64_t key_of_mask(uint32_t state) const override {
    const fsm::Mask* mask = index_->mask(position(state));
    if (mask == nullptr) return 0;
    return uint64_t(number_) << 32 | uint64_t(mask->slot) << 1 | uint64_t(is_complete(state));
  }

  std::string forced_bytes() const override { return index_->forced(history_.back()); }

  std::shared_ptr<SchemaIndex> index_;
  uint32_t number_;                        // of the index with these stop tokens
  std::vector<Position> history_;          // before each step of the text, and now
  mutable std::vector<Position> drafted_;  // after drafts
};

}  // namespace structout::json
