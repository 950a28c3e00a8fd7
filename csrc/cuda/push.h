// The push collectives on CUDA: raw pointers in, one kernel launch out.
#pragma once

#include "common/push.h"

namespace structout::cuda {

constexpr int64_t kMaxPushThreads = 512;  // a block

// At most so much of a device; equal on all ranks.
struct PushGrid {
  int64_t blocks = kMaxPushBlocks;
  int64_t threads = kMaxPushThreads;  // a multiple of 32
};

// Asynchronous on `stream` (a cudaStream_t); the caller checks cudaGetLastError. Calls of one group must be issued in
// the same order on all ranks, and each rank's must run one after another, as on one stream.
void push_all_gather(const PushAllGatherParams& params, const PushGrid& most, void* stream);
void push_rows(const PushRowsParams& params, const PushGrid& most, void* stream);

}  // namespace structout::cuda
