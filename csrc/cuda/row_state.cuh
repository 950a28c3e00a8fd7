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
  int64_t total_mass;       // of all tokens, where logprobs are returned
  uint64_t top_p_target;    // the mass that top_p has to reach; 0: not known yet
  unsigned best_score_key;  // order key of a score that the winner reaches
};

// The tokens that the filters keep: they reach both thresholds.
struct Kept {
  Scale scale;
  float lowest_t;                            // from min_p
  uint32_t lowest_key = kLowestDrawableKey;  // from top_k and top_p

  __device__ bool holds(float x) const { return order_key(x) >= lowest_key && scale.t(x) >= lowest_t; }
};

}  // namespace structout::cuda
