// The free text in front of a constrained one, such as a model's reasoning.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace structout::engine {

// All tokens but the forbidden ones are free up to the first occurrence of the end sequence,
// for example the tokens of "</think>", as adjacent tokens. The search is that of Knuth,
// Morris and Pratt, "Fast pattern matching in strings" (1977). The progress after each token
// is stored, so a rollback truncates a vector.
class Reasoning {
 public:
  Reasoning() = default;  // over at the start

  Reasoning(std::vector<uint32_t> end, std::vector<uint32_t> forbidden)
      : end_(std::move(end)), forbidden_(std::move(forbidden)), borders_(end_.size()) {
    for (size_t i = 1; i < end_.size(); ++i) borders_[i] = matched_with(borders_[i - 1], end_[i]);
  }

  bool is_over() const { return is_over(matched()); }
  size_t num_tokens() const { return matched_after_.size(); }
  const std::vector<uint32_t>& forbidden() const { return forbidden_; }
  size_t num_end_tokens_left() const { return end_.size() - matched(); }

  // The token of the end sequence that is next after `count` more tokens, which do not
  // complete it.
  uint32_t next_end_token(const int64_t* tokens, size_t count) const {
    uint32_t now = matched();
    for (size_t i = 0; i < count; ++i) now = matched_with(now, uint32_t(tokens[i]));
    return end_[now];
  }

  // Reads tokens until the reasoning is over, or up to a forbidden one or a value that is no
  // token below `num_ids`. Returns the number of tokens read.
  size_t read(const int64_t* tokens, size_t count, uint32_t num_ids) {
    return follow(tokens, count, num_ids, [&](uint32_t matched) { matched_after_.push_back(matched); });
  }

  // Like read(), but changes nothing. Returns the number of tokens it would read, and
  // true if the reasoning would be over then.
  std::pair<size_t, bool> look_at(const int64_t* tokens, size_t count, uint32_t num_ids) const {
    uint32_t last = matched();
    size_t num_read = follow(tokens, count, num_ids, [&](uint32_t matched) { last = matched; });
    return {num_read, is_over(last)};
  }

  // Undoes the last `count` tokens.
  void drop(size_t count) { matched_after_.resize(matched_after_.size() - count); }

 private:
  bool is_over(uint32_t matched) const { return matched == end_.size(); }
  uint32_t matched() const { return matched_after_.empty() ? 0 : matched_after_.back(); }

  // The length of the longest prefix of the end sequence that is a suffix of the text
  // with `token`. `matched` is that length before `token`, and less than the length of
  // the end sequence.
  uint32_t matched_with(uint32_t matched, uint32_t token) const {
    while (matched > 0 && end_[matched] != token) matched = borders_[matched - 1];
    return end_[matched] == token ? matched + 1 : 0;
  }

  bool is_forbidden(int64_t token) const {
    return std::find(forbidden_.begin(), forbidden_.end(), token) != forbidden_.end();
  }

  template <typename Note>
  size_t follow(const int64_t* tokens, size_t count, uint32_t num_ids, Note note) const {
    uint32_t now = matched();
    size_t i = 0;
    for (; i < count && !is_over(now) && tokens[i] >= 0 && tokens[i] < num_ids && !is_forbidden(tokens[i]); ++i) {
      now = matched_with(now, uint32_t(tokens[i]));
      note(now);
    }
    return i;
  }

  std::vector<uint32_t> end_, forbidden_;
  std::vector<uint32_t> borders_;        // the length of the longest border of each prefix of the end
  std::vector<uint32_t> matched_after_;  // each token of the text, how many tokens of the end
};

}  // namespace structout::engine
