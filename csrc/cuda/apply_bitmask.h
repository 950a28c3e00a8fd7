// apply_bitmask on CUDA: raw pointers in, one kernel launch out.
#pragma once

#include "common/apply_bitmask.h"

namespace structout::cuda {

// Asynchronous on `stream` (a cudaStream_t); the caller checks cudaGetLastError. `num_sms` only sizes the grid.
void apply_bitmask(const ApplyBitmaskParams& params, int num_sms, void* stream);

}  // namespace structout::cuda
