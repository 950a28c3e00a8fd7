// The position of one text in a token index.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "fsm/token_index.h"

namespace structout::fsm {

// Not safe to use from two threads at once.
class Matcher {
 public:
  // `stop_tokens` end a text, and have no place inside it. They must be in the vocabulary.
  Matcher(std::shared_ptr<const TokenIndex> index, std::vector<uint32_t> stop_tokens)
      : index_(std::move(index)), stop_tokens_(std::move(stop_tokens)) {}

  const TokenIndex& index() const { return *index_; }
  uint32_t state() const { return states_.back(); }
  bool is_terminated() const { return num_stopped_ > 0; }
  size_t num_tokens() const { return states_.size() - 1 + num_stopped_; }
  size_t num_text_tokens() const { return states_.size() - 1; }

  // Accepts the tokens before the first that is not allowed, and returns their number.
  // After a stop token all are.
  size_t accept_prefix(const std::vector<int64_t>& tokens) {
    if (is_terminated()) {
      num_stopped_ += tokens.size();
      return tokens.size();
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (is_stop(tokens[i])) {
        if (!index_->accepts(state())) return i;
        num_stopped_ = tokens.size() - i;
        return tokens.size();
      }
      uint32_t next = index_->next(state(), tokens[i]);
      if (next == kDead) return i;
      states_.push_back(next);
    }
    return tokens.size();
  }

  // `count` must be at most num_tokens().
  void rollback(size_t count) {
    size_t stopped = std::min(count, num_stopped_);
    num_stopped_ -= stopped;
    states_.resize(states_.size() - (count - stopped));
  }

  void fill(uint32_t* row) const {
    index_->fill(state(), row);
    bool is_complete = index_->accepts(state());
    for (uint32_t stop : stop_tokens_) {
      uint32_t bit = 1u << (stop & 31);
      row[stop >> 5] = is_complete ? row[stop >> 5] | bit : row[stop >> 5] & ~bit;
    }
  }

  // Whether the masks of all positions along the drafts are known.
  bool has_masks(const std::vector<int64_t>& drafts) const {
    uint32_t at = state();
    bool is_known = index_->has_mask(at);
    for (size_t i = 0; i < drafts.size() && is_known; ++i) {
      at = index_->next(at, drafts[i]);
      if (at == kDead) break;
      is_known = index_->has_mask(at);
    }
    return is_known;
  }

  // Fills a row for each position along the drafts, the present one first: see
  // StructuredOutputGrammar.fill_bitmask_drafts. `stride`: words from row to row. Returns
  // the number of drafts before the first that is not allowed.
  size_t fill_drafts(uint32_t* row, ptrdiff_t stride, const std::vector<int64_t>& drafts) {
    size_t words = index_->vocabulary().row_words(), before = num_tokens(), num_rows = drafts.size() + 1;
    auto fill_rest = [&](size_t first, const uint32_t* repeated) {
      for (size_t i = first; i < num_rows; ++i) {
        uint32_t* rest = row + ptrdiff_t(i) * stride;
        if (repeated == nullptr) {
          std::fill(rest, rest + words, UINT32_MAX);
        } else {
          std::copy(repeated, repeated + words, rest);
        }
      }
    };
    for (size_t i = 0; i < num_rows; ++i) {
      uint32_t* current = row + ptrdiff_t(i) * stride;
      if (is_terminated()) {
        fill_rest(i, nullptr);
        break;
      }
      fill(current);
      if (i == drafts.size()) break;
      if (drafts[i] == -1) {
        fill_rest(i + 1, nullptr);
        break;
      }
      if (accept_prefix({drafts[i]}) == 0) {
        fill_rest(i + 1, current);
        break;
      }
    }
    size_t num_allowed = num_tokens() - before;
    rollback(num_allowed);
    return num_allowed;
  }

  // Advances by bytes as one step. If they are not allowed, does nothing.
  bool accept_bytes(const std::string& bytes) {
    uint32_t next = state();
    for (size_t i = 0; i < bytes.size() && next != kDead; ++i) next = index_->automaton().next(next, uint8_t(bytes[i]));
    if (next == kDead) return false;
    states_.push_back(next);
    return true;
  }

  void undo_bytes() { states_.pop_back(); }

 private:
  bool is_stop(int64_t token) const {
    return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
  }

  std::shared_ptr<const TokenIndex> index_;
  std::vector<uint32_t> stop_tokens_;
  std::vector<uint32_t> states_ = {0};  // before each token of the text, and now
  size_t num_stopped_ = 0;              // the stop token and those after it
};

}  // namespace structout::fsm
