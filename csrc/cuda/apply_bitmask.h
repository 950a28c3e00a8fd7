// apply_bitmask on CUDA: one kernel launch on raw pointers.
#pragma once

#include "common/apply_bitmask.h"

namespace structout::cuda {

// Launches asynchronously on `stream` (a cudaStream_t). The caller checks
// cudaGetLastError. `num_sms` only says which batches are small.
void apply_bitmask(const ApplyBitmaskParams& params, int num_sms, void* stream);

}  // namespace structout::cuda
