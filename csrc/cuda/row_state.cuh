// What the threads of a row know of it together.
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
  RowParams row;           // needed at the ends of a row, and would hold registers all along
  unsigned highest_score;  // an order key
};

struct Survey {
  float highest = -INFINITY;
  bool has_nan = false;

  __device__ void add(float x) {
    highest = fmaxf(highest, x);  // which drops NaN
    has_nan |= x != x;
  }
  __device__ uint32_t key() const { return has_nan ? kNaNKey : order_key(highest); }
};

struct Kept {
  Scale scale;
  float lowest_t;                            // by min_p
  uint32_t lowest_key = kLowestDrawableKey;  // by top_k and top_p

  __device__ bool holds(float x) const { return order_key(x) >= lowest_key && scale.t(x) >= lowest_t; }
};

}  // namespace structout::cuda
