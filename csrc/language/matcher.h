// The position of one text in a grammar, of whatever kind.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/room.h"
#include "language/reasoning.h"
#include "token_masks/mask_row.h"
#include "token_masks/token_costs.h"
#include "token_masks/vocabulary.h"

namespace structout::engine {

constexpr uint32_t kNoState = UINT32_MAX;
constexpr uint32_t kFreeRow = kNoState - 1;  // in the place of a state
// In the place of a state, for rows of a reasoning: it goes on with any token that does not
// end the text, or has to end, and the token that comes next is added to the number.
constexpr uint32_t kReasoningGoesOn = 3u << 30, kReasoningEnds = kReasoningGoesOn + 1;
inline bool is_of_reasoning(uint32_t state) { return state >= kReasoningGoesOn && state < kReasoningEnds + (1u << 29); }

// The matcher of one request: it accepts tokens, rolls them back, fills masks and looks
// ahead along drafts. This class has the parts that all kinds of grammars share: stop
// tokens, the token history, drafts, errors. Each kind of grammar implements the
// private hooks.
//
// A state is a number that the kind of grammar gives to a position. It is valid until
// the matcher moves.
//
// Grammars that create their states lazily may exceed a limit in any call. If a hook
// throws a runtime_error (a LimitError, for example) or bad_alloc, nothing is allowed,
// and error() has the message. If a hook throws StepBudgetExceeded, the call throws it
// too and has changed nothing.
//
// Not safe to use from two threads at once.
class Matcher {
 public:
  virtual ~Matcher() = default;

  const VocabularyTrie& vocabulary() const { return *vocabulary_; }
  uint32_t row_words() const { return vocabulary_->row_words(); }
  const std::vector<uint32_t>& stop_tokens() const { return stop_tokens_; }
  bool is_terminated() const { return num_stopped_ > 0; }
  size_t num_tokens() const { return reasoning_.num_tokens() + tokens_.size() + num_stopped_; }

  // Lets the text begin after a reasoning, which no hook sees and which the tokens `end` end.
  // A stop token ends it only if the text may be empty. To be called at the start.
  void begin_after(std::vector<uint32_t> end) {
    std::vector<uint32_t> forbidden;
    if (!can_end(current_state())) {
      std::copy_if(stop_tokens_.begin(), stop_tokens_.end(), std::back_inserter(forbidden),
                   [&](uint32_t stop) { return std::find(end.begin(), end.end(), stop) == end.end(); });
    }
    reasoning_ = Reasoning(std::move(end), std::move(forbidden));
  }

  bool is_reasoning() const { return !reasoning_.is_over(); }

  // Limits the tokens of the whole text, reasoning and stop token included. From then on
  // masks allow only tokens after which the text can still end in time, and reasoning ends
  // early enough for the text behind it. `is_fair`: values share what is left, as FairLimit
  // says. Without an effect where no end is known.
  void end_within(uint64_t max_tokens, bool is_fair = true) {
    max_tokens_ = std::min(max_tokens, kNoLimit);
    uint32_t needed = num_needed();
    has_limit_ = needed != kUnknownCost;
    max_reasoning_ = int64_t(max_tokens_) - int64_t(needed);
    is_fair_ = is_fair && has_limit_ && max_reasoning_ > 0;
    if (!is_fair_) return;
    fair_.num_values = or_error(0u, [&] { return values_to_come(current_state()); });
    fair_.spare = uint32_t(max_reasoning_);
    if (is_reasoning()) {
      fair_.spare = std::min(fair_.spare / 2, fair_.num_values * FairLimit::kShare);
      max_reasoning_ -= fair_.spare;
    }
  }

  // The tokens that the text still needs, the end of the reasoning and a stop token included,
  // at most. kUnknownCost if no end is known. 0 after the stop token.
  uint32_t num_needed() const {
    if (is_terminated()) return 0;
    uint32_t cost = or_error(kUnknownCost, [&] { return cost_to_end(current_state()); });
    return cost == kUnknownCost ? kUnknownCost : cost + 1 + uint32_t(reasoning_.num_end_tokens_left());
  }

  // True if the limit has forbidden a token in some mask.
  bool was_narrowed() const { return was_narrowed_; }

  // True if every token may come next: after a stop token, and during a reasoning that a stop
  // token may end.
  bool is_unconstrained() const { return is_terminated() || (is_reasoning() && row_state() == kFreeRow); }

  // The last error of a hook since the last accept, rollback or num_allowed: the reason
  // why nothing was allowed, if the text is not to blame. Empty if there was none.
  const std::string& error() const { return error_; }

  // The last tokens of the text, `count` of them if there are as many.
  std::vector<uint32_t> recent_tokens(size_t count) const {
    return {tokens_.end() - ptrdiff_t(std::min(count, tokens_.size())), tokens_.end()};
  }

  // Accepts all tokens, or none if one of them is not allowed.
  bool accept(const int64_t* tokens, size_t count) {
    size_t accepted = accept_prefix(tokens, count);
    if (accepted == count) return true;
    drop_tokens(accepted);
    return false;
  }

  // The number of tokens before the first that is not allowed. The position does not change.
  size_t num_allowed(const int64_t* tokens, size_t count) {
    size_t accepted = accept_prefix(tokens, count);
    drop_tokens(accepted);
    return accepted;
  }

  // `count` must be at most num_tokens().
  void rollback(size_t count) {
    error_.clear();
    drop_tokens(count);
  }

  // Advances by bytes as one step. If they are not allowed, does nothing.
  bool accept_bytes(const std::string& bytes) {
    error_.clear();
    bool is_allowed = or_error(false, [&] {
      make_room(tokens_);
      return advance_bytes(bytes);
    });
    if (!is_allowed) return false;
    tokens_.push_back(kNoToken);
    return true;
  }

  void undo_bytes() { drop_steps(1); }

  // Appends a state for each row along the drafts, the present one first, or kFreeRow
  // where the row allows everything: see StructuredOutputGrammar.fill_bitmask_drafts.
  // Returns the number of drafts before the first that is not allowed.
  size_t append_draft_states(const int64_t* drafts, size_t count, std::vector<uint32_t>& states) const {
    auto [num_free, is_constrained] = reasoning_.look_at(drafts, count, vocabulary_->size());
    for (size_t row = 0; row < num_free + !is_constrained; ++row) {
      states.push_back(reasoning_state(drafts, row));
      bool has_to_end = states.back() >= kReasoningEnds && states.back() != kFreeRow;
      bool is_allowed = !has_to_end || row == count || drafts[row] == states.back() - kReasoningEnds;
      if (row < num_free && is_allowed) continue;
      states.insert(states.end(), count - row, row < count && drafts[row] == -1 ? kFreeRow : states.back());
      return row;
    }
    uint32_t state = is_terminated() ? kFreeRow : current_state();
    states.push_back(state);
    for (size_t i = num_free; i < count; ++i) {
      if (state == kFreeRow || drafts[i] == -1) {
        states.insert(states.end(), count - i, kFreeRow);
        return i;
      }
      uint32_t next = kNoState;
      bool ends = is_stop(drafts[i]) && can_end(state);
      bool is_inside = is_token(drafts[i]) && !ends;
      if (is_inside && is_stop(drafts[i])) {
        is_inside = or_error(false, [&] { return reads_stop(state, uint32_t(drafts[i])); });
      }
      if (ends) {
        next = kFreeRow;
      } else if (is_inside) {
        next = or_error(kNoState, [&] {
          bool is_too_long = costs_after(
              state, i, [&](const TokenCosts& costs, uint32_t max) { return costs.after(uint32_t(drafts[i])) > max; });
          return is_too_long ? kNoState : next_state(state, uint32_t(drafts[i]));
        });
      }
      if (next == kNoState) {
        states.insert(states.end(), count - i, state);
        return i;
      }
      state = next;
      states.push_back(state);
    }
    return count;
  }

  // Fills the mask of a state, to which `num_ahead` drafts lead. Returns true if it allows any
  // token. The bits of stop tokens are set last, over those of fill_text().
  bool fill(uint32_t state, MaskRow& row, size_t num_ahead = 0) const {
    if (is_of_reasoning(state)) {
      bool goes_on = state == kReasoningGoesOn;
      row.write(goes_on ? kAllTokens : kNoTokens);
      if (!goes_on) row.set(state - kReasoningEnds, true);
      for (uint32_t token : reasoning_.forbidden()) row.set(token, false);
      return true;
    }
    std::string error_before = std::exchange(error_, "");
    bool allows_text, can_stop, has_cleared = false;
    try {
      allows_text = or_error(false, [&] { return fill_text(state, row); });
      can_stop = can_end(state);
      bool has_narrowed = or_error(false, [&] {
        return costs_after(state, num_ahead,
                           [&](const TokenCosts& costs, uint32_t max) { return costs.narrow(max, row); });
      });
      if (has_narrowed) allows_text = row.allows_any();
      was_narrowed_ = was_narrowed_ || has_narrowed;
    } catch (const StepBudgetExceeded&) {
      error_ = std::move(error_before);
      throw;
    }
    if (!error_.empty()) {
      row.write(kNoTokens);
      return false;
    }
    error_ = std::move(error_before);
    for (uint32_t stop : stop_tokens_) {
      bool is_allowed = can_stop || or_error(false, [&] { return reads_stop(state, stop); });
      has_cleared = has_cleared || (!is_allowed && row.allows(stop));
      row.set(stop, is_allowed);
    }
    if (has_cleared) allows_text = row.allows_any();  // a stop token with text was maybe the only one that was allowed
    return allows_text || (can_stop && !stop_tokens_.empty());
  }
  bool fill(uint32_t state, uint32_t* words) const {
    MaskRow row(words, row_words());
    return fill(state, row);
  }

  // True if at least one token is allowed next. Costs a fill() of the present state.
  bool allows_any() const {
    std::vector<uint32_t> words(row_words());
    return is_unconstrained() || fill(current_state(), words.data());
  }

  // The state of the present position, which a stop token does not change.
  virtual uint32_t current_state() const = 0;

  // The state of the next row: the present one, or that of the reasoning.
  uint32_t row_state() const { return is_reasoning() ? reasoning_state(nullptr, 0) : current_state(); }

  // True if fill(state) only copies a stored mask: a cache hit. After false, fill() may
  // have to compute the mask over the vocabulary.
  virtual bool has_mask(uint32_t state) const = 0;

  // Prefetches the memory that the next call reads first. Only a hint to the processor.
  void prefetch() const {
    __builtin_prefetch(stop_tokens_.data());
    __builtin_prefetch(tokens_.data() + tokens_.size());
    prefetch_config();
  }

  // The bytes that must follow. None if tokens for them could be more than the limit leaves.
  std::string forced() const {
    if (is_reasoning()) return "";
    std::string bytes = or_error(std::string(), [&] { return forced_bytes(); });
    if (!has_limit_ || bytes.empty()) return bytes;
    uint64_t most = uint64_t(num_needed()) + bytes.size() + vocabulary_->max_depth();
    return int64_t(most) <= num_left(0) ? bytes : "";
  }

  // A matcher of the same position, which moves on its own.
  virtual std::unique_ptr<Matcher> copy() const = 0;

 protected:
  static constexpr uint32_t kNoToken = UINT32_MAX;  // in the place of a token: bytes

  bool is_stop(int64_t token) const {
    return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
  }

  // `stop_tokens` end a text, for example <|eot|>. Inside a text they are allowed only if
  // the grammar itself names them; see reads_stop(). Throws std::invalid_argument if one
  // is not in the vocabulary.
  Matcher(std::shared_ptr<const VocabularyTrie> vocabulary, std::vector<uint32_t> stop_tokens)
      : vocabulary_(std::move(vocabulary)), stop_tokens_(std::move(stop_tokens)) {
    for (uint32_t stop : stop_tokens_) {
      if (stop >= vocabulary_->size()) throw std::invalid_argument("a stop token is out of range");
    }
  }
  Matcher(const Matcher&) = default;

 private:
  // The hooks. `token` is in the vocabulary.

  // Prefetches the present position, for prefetch().
  virtual void prefetch_config() const = 0;

  // Moves by a token. If it is not allowed, does nothing and returns false.
  virtual bool advance(uint32_t token) = 0;

  // Moves by bytes, as one step.
  virtual bool advance_bytes(const std::string& bytes) = 0;

  // True if the grammar allows this stop token inside the text, in this state. Only then
  // do the other hooks see it.
  virtual bool reads_stop(uint32_t, uint32_t) const { return false; }

  // Undoes the last `count` steps.
  virtual void drop(size_t count) = 0;

  // True if the text up to the state is complete, so that a stop token is allowed.
  virtual bool is_complete(uint32_t state) const = 0;

  // The state after a token. kNoState if it is not allowed.
  virtual uint32_t next_state(uint32_t state, uint32_t token) const = 0;

  // Fills the mask of the tokens that continue the text; the bits of stop tokens do not
  // matter. Returns whether a token is allowed.
  virtual bool fill_text(uint32_t state, MaskRow& row) const = 0;

  // The values that the ending of a state begins, which may need more tokens than there.
  virtual uint32_t values_to_come(uint32_t) const { return 0; }

  // Implements forced() for texts after the reasoning.
  virtual std::string forced_bytes() const = 0;

  // The cost of a state as TokenCosts says. kUnknownCost if no end is known.
  virtual uint32_t cost_to_end(uint32_t) const { return kUnknownCost; }

  // The costs after the tokens of a state. Null if none of them is more than `max`, which is
  // a single comparison where `max` is large.
  virtual CostTable token_costs(uint32_t, uint32_t) const { return {}; }

  // The result of a hook, or `failed` where it throws.
  template <typename Result, typename Hook>
  Result or_error(Result failed, Hook hook) const {
    try {
      return hook();
    } catch (const std::runtime_error& error) {
      error_ = error.what();
      return failed;
    } catch (const std::bad_alloc&) {
      error_ = "out of memory";  // short enough to be stored without an allocation
      return failed;
    }
  }

  // Accepts the tokens before the first that is not allowed, and returns their number.
  // After a stop token all are.
  size_t accept_prefix(const int64_t* tokens, size_t count) {
    error_.clear();
    size_t num_free = reasoning_.read(tokens, count, vocabulary_->size());
    if (is_reasoning()) return num_free;
    try {
      return num_free + accept_constrained(tokens + num_free, count - num_free);
    } catch (...) {  // StepBudgetExceeded
      reasoning_.drop(num_free);
      throw;
    }
  }

  // accept_prefix() of tokens after the reasoning.
  size_t accept_constrained(const int64_t* tokens, size_t count) {
    if (is_terminated()) {
      num_stopped_ += count;
      return count;
    }
    size_t i = 0;
    try {
      for (; i < count; ++i) {
        if (is_stop(tokens[i])) {
          if (can_end(current_state())) {
            num_stopped_ = count - i;
            return count;
          }
          if (!or_error(false, [&] { return reads_stop(current_state(), uint32_t(tokens[i])); })) return i;
        }
        bool is_allowed = is_token(tokens[i]) && or_error(false, [&] {
                            make_room(tokens_);  // first, so that nothing fails once the text has moved
                            return advance(uint32_t(tokens[i]));
                          });
        if (!is_allowed) return i;
        tokens_.push_back(uint32_t(tokens[i]));
      }
    } catch (...) {  // StepBudgetExceeded
      drop_steps(i);
      throw;
    }
    return count;
  }

  int64_t num_left(size_t num_ahead) const { return int64_t(max_tokens_) - int64_t(num_tokens() + num_ahead); }

  // True if the rest of the limit is only just enough for the end of the reasoning and a text.
  bool must_end_reasoning(size_t num_ahead) const {
    return has_limit_ && int64_t(num_tokens() + num_ahead) >= max_reasoning_ && num_left(num_ahead) > 0;
  }

  // The state of the row after `count` tokens of the reasoning.
  uint32_t reasoning_state(const int64_t* tokens, size_t count) const {
    if (must_end_reasoning(count)) return kReasoningEnds + reasoning_.next_end_token(tokens, count);
    return reasoning_.forbidden().empty() ? kFreeRow : kReasoningGoesOn;
  }

  // narrow(costs, max) if some token of a state could make the text too long, else false:
  // `max` is what a token may leave to the end. A text that cannot end in time
  // whatever comes, since its tokens did not follow the masks, is not narrowed any more.
  template <typename Narrow>
  bool costs_after(uint32_t state, size_t num_ahead, Narrow narrow) const {
    if (!has_limit_) return false;
    int64_t left = num_left(num_ahead);
    if (left <= 0) return false;
    if (left == 1) return cost_to_end(state) == 0 && narrow(TokenCosts(0, 1, {}), 0);  // a stop token only
    auto max = uint32_t(left - 2);
    uint32_t kept = is_fair_ ? std::min(max, FairLimit::kMostKept) : 0;
    auto [costs, more] = token_costs(state, max - kept);
    bool can_end_in_time = costs != nullptr && int64_t(costs->own) + more < left && more <= max;
    if (!can_end_in_time) return false;
    max -= more;
    return narrow(*costs, is_fair_ ? fair_.max_after(*costs, max) : max);
  }

  bool can_end(uint32_t state) const {
    return or_error(false, [&] { return is_complete(state); });
  }

  bool is_token(int64_t token) const { return token >= 0 && token < vocabulary_->size(); }

  void drop_tokens(size_t count) {
    size_t num_stopped = std::min(count, num_stopped_);
    num_stopped_ -= num_stopped;
    size_t num_steps = std::min(count - num_stopped, tokens_.size());
    drop_steps(num_steps);
    reasoning_.drop(count - num_stopped - num_steps);
  }

  void drop_steps(size_t count) {
    drop(count);
    tokens_.resize(tokens_.size() - count);
  }

  std::shared_ptr<const VocabularyTrie> vocabulary_;
  std::vector<uint32_t> stop_tokens_;
  Reasoning reasoning_;
  std::vector<uint32_t> tokens_;  // of the text, one for each step; kNoToken for bytes
  size_t num_stopped_ = 0;        // the stop token and those after it
  static constexpr uint64_t kNoLimit = UINT32_MAX >> 1;
  bool has_limit_ = false, is_fair_ = false;
  FairLimit fair_;
  uint64_t max_tokens_ = kNoLimit;  // of the whole text
  int64_t max_reasoning_ = 0;       // of which the reasoning may have so many before its end
  mutable bool was_narrowed_ = false;
  mutable std::string error_;
};

}  // namespace structout::engine
