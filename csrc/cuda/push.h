// The push collectives on CUDA: one kernel launch each, on raw pointers.
#pragma once

#include "common/push.h"

namespace structout::cuda {

constexpr int64_t kMaxPushThreads = 512;  // per block

// The largest grid that a call may use. Must be equal on all ranks.
struct PushGrid {
  int64_t blocks = kMaxPushBlocks;
  int64_t threads = kMaxPushThreads;  // a multiple of 32
};

// Launch asynchronously on `stream` (a cudaStream_t). The caller checks
// cudaGetLastError. All ranks of a group must make the same calls in the same order,
// and a rank's calls must run one after another, as on one stream.
void push_all_gather(const PushAllGatherParams& params, const PushGrid& max_grid, void* stream);
void push_rows(const PushRowsParams& params, const PushGrid& max_grid, void* stream);

}  // namespace structout::cuda
