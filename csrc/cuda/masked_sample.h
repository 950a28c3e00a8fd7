// masked_sample on CUDA: one kernel launch on raw pointers.
#pragma once

#include "common/masked_sample.h"

namespace structout::cuda {

// Properties of the device. They affect the speed of a call, never its result.
struct DeviceFacts {
  int num_sms;
  int compute_capability;        // 90 for 9.0
  int max_shared_bytes_a_block;  // cudaDevAttrMaxSharedMemoryPerBlockOptin
  // How many clusters of 2, 4 and 8 blocks run at a time, one block per multiprocessor.
  // A cluster stays within a GPC, and GPCs differ in size even within a GPU, so this
  // cannot be derived from num_sms. Zeros: the device has no clusters.
  int max_clusters[3] = {};
};

// Allows the kernels their shared memory and fills in device.max_clusters. Call this
// once per device, with the device current, before its first launch. Do not call it
// again: it sets function attributes for the whole process, where other threads may be
// launching kernels or replaying graphs.
void prepare_masked_sample(DeviceFacts& device);

// Launches asynchronously on `stream` (a cudaStream_t). The caller checks
// cudaGetLastError. It needs no workspace and keeps no state between launches, so a
// captured graph can be replayed.
void masked_sample(const MaskedSampleParams& params, const DeviceFacts& device, void* stream);

}  // namespace structout::cuda
