// The steps of token_logprobs on a GPU.
#pragma once

#include "common/token_logprobs.h"

namespace structout::cuda {

void top_tokens(const TopTokensParams& params, void* stream);

void row_totals(const RowTotalsParams& params, void* stream);

void merge_totals(const MergeTotalsParams& params, void* stream);

}  // namespace structout::cuda
