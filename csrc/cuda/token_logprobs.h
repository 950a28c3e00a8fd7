// token_logprobs and its steps on a GPU.
#pragma once

#include "common/token_logprobs.h"
#include "cuda/device_facts.h"

namespace structout::cuda {

// Allows the kernels their shared memory, once per device (see prepare_masked_sample).
void prepare_token_logprobs(const DeviceFacts& device);

// All steps, in one launch.
void token_logprobs(const TokenLogprobsParams& params, const DeviceFacts& device, void* stream);

void top_tokens(const TopTokensParams& params, const DeviceFacts& device, void* stream);

void row_totals(const RowTotalsParams& params, void* stream);

void merge_totals(const MergeTotalsParams& params, void* stream);

}  // namespace structout::cuda
