// The steps of token_logprobs on the CPU.
#pragma once

#include "common/token_logprobs.h"
#include "cpu/row_loop.h"

namespace structout::cpu {

void top_tokens(const TopTokensParams& params, int64_t num_threads, const ParallelFor& parallel_for);

void row_totals(const RowTotalsParams& params, int64_t num_threads, const ParallelFor& parallel_for);

}  // namespace structout::cpu
