// masked_sample on CUDA: raw pointers in, one kernel launch out.
#pragma once

#include "common/masked_sample.h"

namespace structout::cuda {

// They decide how fast a call is, never what it returns.
struct DeviceFacts {
  int num_sms;
  int compute_capability;        // 90 for 9.0
  int max_shared_bytes_a_block;  // cudaDevAttrMaxSharedMemoryPerBlockOptin
};

// Once for each device, which must be the current one, before its first launch. Never again: what it sets holds for the
// whole process, where other threads may be launching, and graphs that they captured.
void prepare_masked_sample(const DeviceFacts& device);

// Asynchronous on `stream` (a cudaStream_t); the caller checks cudaGetLastError. Needs no workspace, and keeps no state
// between launches, so a captured graph can be replayed at will.
void masked_sample(const MaskedSampleParams& params, const DeviceFacts& device, void* stream);

}  // namespace structout::cuda
