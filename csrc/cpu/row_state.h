// The state of a row while it is sampled, shared by the kernels of all instruction
// sets.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/shard_result.h"

namespace structout::cpu {

constexpr float kLowest = -INFINITY;

// The tokens that the filters keep have a logit and a t of at least these thresholds.
struct Kept {
  float at_least = kLowest;
  float t_at_least = kLowest;

  bool has(const Scale& scale, float x) const { return x >= at_least && scale.t(x) >= t_at_least; }
};

constexpr int64_t kPadding = 64;  // logits of -inf, so that readers may take so many at a time

// Some tokens of a row, in ascending order, with their logits.
struct Candidates {
  std::vector<int32_t> tokens;
  std::vector<float> x;
  int64_t count = 0;

  // Makes room for `capacity` tokens and the padding.
  void reserve(int64_t capacity) {
    const size_t needed = static_cast<size_t>(capacity + kPadding);
    if (x.size() >= needed) return;
    const size_t room = std::max(needed, 2 * x.size());
    tokens.resize(room);
    x.resize(room);
  }
  void push(int64_t token, float logit) {
    tokens[count] = static_cast<int32_t>(token);
    x[count++] = logit;
  }
  void pad() {
    std::fill_n(tokens.begin() + count, kPadding, 0);
    std::fill_n(x.begin() + count, kPadding, kLowest);
  }
  void keep(const Scale& scale, const Kept& kept) {
    const int64_t old_count = std::exchange(count, 0);
    for (int64_t i = 0; i < old_count; ++i) {
      if (kept.has(scale, x[i])) push(tokens[i], x[i]);
    }
    pad();
  }
  void keep_above(float limit) {
    const int64_t old_count = std::exchange(count, 0);
    for (int64_t i = 0; i < old_count; ++i) {
      if (x[i] > limit) push(tokens[i], x[i]);
    }
    pad();
  }
};

// A thread's buffers. They are reused from row to row and grow to what the largest row
// needs.
struct Workspace {
  std::vector<float> block_maxima;
  std::vector<float> sorted;
  std::vector<int32_t> order;
  Candidates candidates;
};

// The first pass over the logits of a row, or over a part of it.
struct Scan {
  bool has_nan = false;
  float highest = kLowest;

  bool can_draw() const { return !has_nan && highest > kLowest; }
  void operator+=(const Scan& other) {
    has_nan |= other.has_nan;
    highest = std::max(highest, other.highest);
  }
};

// The token of the highest score so far. A tie goes to the lowest token, in any order
// of the challenges.
struct Winner {
  float score = kLowest;
  int64_t token = -1;
  float x = 0;

  void challenge(float other_score, int64_t other_token, float other_x) {
    if (other_score > score || (other_score == score && other_token < token))
      *this = {other_score, other_token, other_x};
  }
  void operator+=(const Winner& other) {
    if (other.token >= 0) challenge(other.score, other.token, other.x);
  }
};

struct Drawn {
  ShardResult result;
  float logprob = kLowest;

  explicit Drawn(const Scan& scanned) : result(ShardResult::nothing(scanned.has_nan ? NAN : scanned.highest)) {}
  Drawn(float highest, const Winner& winner, float logprob)
      : result{highest, winner.score, static_cast<int32_t>(winner.token), winner.x}, logprob(logprob) {}
};

inline float logprob(const Scale& scale, float x, int64_t total_mass) {
  return total_mass == 0 ? 0.0f : scale.t(x) - log_of_mass(total_mass);
}

}  // namespace structout::cpu
