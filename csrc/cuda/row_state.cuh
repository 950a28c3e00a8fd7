// The state of a row, shared by the threads that sample it.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/sampling_row.h"
#include "cuda/select.cuh"
#include "cuda/token_list.cuh"

namespace structout::cuda {

struct RowScratch {
  TeamScratch team;
  SelectScratch select;
  TokenList list;
  RowParams row;            // in shared memory, because it would occupy registers during all passes
  unsigned best_score_key;  // order key of the block's best score so far
};

// What one pass finds out about a thread's logits.
struct Survey {
  float highest = -INFINITY;
  bool has_nan = false;

  __device__ void add(float x) {
    highest = fmaxf(highest, x);  // ignores NaN
    has_nan |= x != x;
  }
  __device__ uint32_t key() const { return has_nan ? kNaNKey : order_key(highest); }
};

// What the filters keep: tokens that reach both thresholds.
struct Kept {
  Scale scale;
  float lowest_t;                            // from min_p
  uint32_t lowest_key = kLowestDrawableKey;  // from top_k and top_p

  __device__ bool holds(float x) const { return order_key(x) >= lowest_key && scale.t(x) >= lowest_t; }
};

}  // namespace structout::cuda
