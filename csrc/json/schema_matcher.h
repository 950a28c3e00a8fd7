// The position of one text in a schema.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "json/schema_index.h"
#include "step/matcher.h"

namespace structout::json {

// Its states are numbers of positions: 0 for the present one, then those that drafts
// lead to.
class SchemaMatcher final : public engine::Matcher {
 public:
  SchemaMatcher(std::shared_ptr<SchemaIndex> index, std::vector<uint32_t> stop_tokens)
      : Matcher(index->shared_vocabulary(), std::move(stop_tokens)),
        index_(std::move(index)),
        states_(index_->states()),
        number_(states_->number_with(this->stop_tokens())),
        history_{states_->start()} {}

  uint32_t current_state() const override { return 0; }
  std::vector<State> control_state() const {
    return with_room([&] { return states_->control_state(history_.back()); });
  }
  bool has_mask(uint32_t state) const override { return states_->has_mask(position(state)); }

  std::unique_ptr<Matcher> copy() const override { return std::make_unique<SchemaMatcher>(*this); }

 private:
  struct Draft {
    uint32_t before;  // the state that it follows
    uint32_t token;
    Position position;
  };

  const Position& position(uint32_t state) const { return state == 0 ? history_.back() : drafts_[state - 1].position; }

  std::string bytes_of(uint32_t token) const { return std::string(vocabulary().begin(token), vocabulary().end(token)); }

  // Calls a function that may make states. If there is no room for more of them beside
  // those of other texts, makes those of this text again, apart from the others.
  template <typename Function>
  std::invoke_result_t<Function> with_room(Function function) const {
    try {
      return function();
    } catch (const RoomError&) {
      if (has_own_states_) throw;
      read_again();
    }
    return function();
  }

  void read_again() const {
    std::shared_ptr<SchemaStates> states = index_->new_states();
    auto after = [&](Position position, const std::string& bytes) {
      states->read(position, bytes);
      return position;
    };
    std::vector<Position> history = {states->start()};
    for (const std::string& step : steps_) history.push_back(after(history.back(), step));
    std::vector<Draft> drafts = drafts_;
    for (Draft& draft : drafts) {
      const Position& before = draft.before == 0 ? history.back() : drafts[draft.before - 1].position;
      draft.position = after(before, bytes_of(draft.token));
    }
    states_ = std::move(states);
    has_own_states_ = true;
    number_ = states_->number_with(stop_tokens());
    history_ = std::move(history);
    drafts_ = std::move(drafts);
  }

  bool advance(uint32_t token) override {
    std::string bytes = bytes_of(token);
    return !bytes.empty() && advance_bytes(bytes);
  }

  bool advance_bytes(const std::string& bytes) override {
    return with_room([&] {
      Position next = history_.back();
      if (!states_->read(next, bytes)) return false;
      history_.push_back(std::move(next));
      steps_.push_back(bytes);
      drafts_.clear();
      return true;
    });
  }

  void drop(size_t count) override {
    history_.erase(history_.end() - ptrdiff_t(count), history_.end());
    steps_.resize(steps_.size() - count);
    drafts_.clear();
  }

  bool is_complete(uint32_t state) const override {
    return with_room([&] { return states_->is_complete(position(state)); });
  }

  uint32_t next_state(uint32_t state, uint32_t token) const override {
    std::string bytes = bytes_of(token);
    return with_room([&]() -> uint32_t {
      Position next = position(state);
      if (bytes.empty() || !states_->read(next, bytes)) return engine::kNoState;
      drafts_.push_back({state, token, std::move(next)});
      return uint32_t(drafts_.size());
    });
  }

  bool fill_text(uint32_t state, uint32_t* row) const override {
    return with_room([&] { return states_->fill(position(state), row); });
  }

  uint64_t key_of_mask(uint32_t state) const override {
    const engine::Mask* mask = with_room([&] { return states_->mask(position(state)); });
    if (mask == nullptr) return 0;
    return uint64_t(number_) << 32 | uint64_t(mask->slot) << 1 | uint64_t(is_complete(state));
  }

  std::string forced_bytes() const override {
    return with_room([&] { return states_->forced(history_.back()); });
  }

  const std::shared_ptr<SchemaIndex> index_;
  std::vector<std::string> steps_;  // of the text
  // What follows changes where states are made again.
  mutable std::shared_ptr<SchemaStates> states_;
  mutable bool has_own_states_ = false;
  mutable uint32_t number_;                // of states_ with these stop tokens
  mutable std::vector<Position> history_;  // before each step, and now
  mutable std::vector<Draft> drafts_;
};

}  // namespace structout::json
