// The position of one text in a token index.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "fsm/token_index.h"

namespace structout::fsm {

constexpr uint32_t kFreeRow = kDead - 1;  // in the place of a state

// Not safe to use from two threads at once.
class Matcher {
 public:
  // `stop_tokens` end a text, and have no place inside it. They must be in the vocabulary.
  Matcher(std::shared_ptr<const TokenIndex> index, std::vector<uint32_t> stop_tokens)
      : index_(std::move(index)), stop_tokens_(std::move(stop_tokens)), number_(index_->number_with(stop_tokens_)) {}

  const TokenIndex& index() const { return *index_; }
  uint32_t state() const { return states_.back(); }
  bool is_terminated() const { return num_stopped_ > 0; }
  size_t num_tokens() const { return states_.size() - 1 + num_stopped_; }

  // The last tokens of the text, `count` of them if there are as many.
  std::vector<uint32_t> recent_tokens(size_t count) const {
    return {tokens_.end() - ptrdiff_t(std::min(count, tokens_.size())), tokens_.end()};
  }

  // Accepts the tokens before the first that is not allowed, and returns their number.
  // After a stop token all are.
  size_t accept_prefix(const int64_t* tokens, size_t count) {
    if (is_terminated()) {
      num_stopped_ += count;
      return count;
    }
    for (size_t i = 0; i < count; ++i) {
      if (is_stop(tokens[i])) {
        if (!index_->accepts(state())) return i;
        num_stopped_ = count - i;
        return count;
      }
      uint32_t next = index_->next(state(), tokens[i]);
      if (next == kDead) return i;
      push(next, uint32_t(tokens[i]));
    }
    return count;
  }

  // Accepts all tokens, or none if one of them is not allowed.
  bool accept(const int64_t* tokens, size_t count) {
    size_t accepted = accept_prefix(tokens, count);
    if (accepted == count) return true;
    rollback(accepted);
    return false;
  }

  // `count` must be at most num_tokens().
  void rollback(size_t count) {
    size_t stopped = std::min(count, num_stopped_);
    num_stopped_ -= stopped;
    states_.resize(states_.size() - (count - stopped));
    tokens_.resize(states_.size() - 1);
  }

  // Fills the mask of a state. Returns whether it allows anything.
  bool fill(uint32_t state, uint32_t* row) const {
    bool allows_text = !index_->fill(state, row), is_complete = index_->accepts(state), has_cleared = false;
    for (uint32_t stop : stop_tokens_) {
      uint32_t bit = 1u << (stop & 31), &word = row[stop >> 5];
      has_cleared = has_cleared || (!is_complete && (word & bit) != 0);
      word = is_complete ? word | bit : word & ~bit;
    }
    if (has_cleared) {  // of a stop token with text, maybe the only one that was allowed
      allows_text = std::any_of(row, row + index_->vocabulary().row_words(), [](uint32_t word) { return word != 0; });
    }
    return allows_text || (is_complete && !stop_tokens_.empty());
  }

  // A number for the mask of a state: masks of the same number are equal, in the whole
  // process. 0 if the mask has none.
  uint64_t mask_key(uint32_t state) const {
    uint32_t slot = index_->mask_slot(state);
    return slot == kDead ? 0 : uint64_t(number_) << 32 | uint64_t(slot) << 1 | uint64_t(index_->accepts(state));
  }

  // Appends a state for each row along the drafts, the present one first, or kFreeRow
  // where the row allows everything: see StructuredOutputGrammar.fill_bitmask_drafts.
  // Returns the number of drafts before the first that is not allowed.
  size_t append_draft_states(const int64_t* drafts, size_t count, std::vector<uint32_t>& states) const {
    uint32_t current = is_terminated() ? kFreeRow : state();
    states.push_back(current);
    for (size_t i = 0; i < count; ++i) {
      if (current == kFreeRow || drafts[i] == -1) {
        states.insert(states.end(), count - i, kFreeRow);
        return i;
      }
      uint32_t next =
          is_stop(drafts[i]) ? (index_->accepts(current) ? kFreeRow : kDead) : index_->next(current, drafts[i]);
      if (next == kDead) {
        states.insert(states.end(), count - i, current);
        return i;
      }
      current = next;
      states.push_back(current);
    }
    return count;
  }

  // Advances by bytes as one step. If they are not allowed, does nothing.
  bool accept_bytes(const std::string& bytes) {
    uint32_t next = state();
    for (size_t i = 0; i < bytes.size() && next != kDead; ++i) next = index_->automaton().next(next, uint8_t(bytes[i]));
    if (next == kDead) return false;
    push(next, kDead);
    return true;
  }

  void undo_bytes() {
    states_.pop_back();
    tokens_.pop_back();
  }

 private:
  bool is_stop(int64_t token) const {
    return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
  }

  void push(uint32_t state, uint32_t token) {
    states_.push_back(state);
    tokens_.push_back(token);
  }

  std::shared_ptr<const TokenIndex> index_;
  std::vector<uint32_t> stop_tokens_;
  uint32_t number_;                     // of the index with these stop tokens
  std::vector<uint32_t> states_ = {0};  // before each token of the text, and now
  std::vector<uint32_t> tokens_;        // of the text; kDead for a step of bytes
  size_t num_stopped_ = 0;              // the stop token and those after it
};

}  // namespace structout::fsm
