// masked_sample on CUDA: one kernel launch on raw pointers.
#pragma once

#include "common/masked_sample.h"
#include "cuda/device_facts.h"

namespace structout::cuda {

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
