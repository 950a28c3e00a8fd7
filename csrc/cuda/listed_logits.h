// apply_penalties and apply_logit_bias on CUDA: one kernel launch on raw pointers.
#pragma once

#include "common/listed_logits.h"

namespace structout::cuda {

// Launch asynchronously on `stream` (a cudaStream_t). The caller checks
// cudaGetLastError.
void apply_penalties(const PenaltiesParams& params, void* stream);
void apply_logit_bias(const LogitBiasParams& params, void* stream);

}  // namespace structout::cuda
