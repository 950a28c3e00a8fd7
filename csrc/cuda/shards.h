// What sharded_masked_sample does on one rank's GPU beside masked_sample itself.
#pragma once

#include "common/shard_result.h"
#include "cuda/masked_sample.h"

namespace structout::cuda {

// Of each row, the mass that the allowed tokens of this shard have, where highest[row] is the highest logit of all.
void shard_mass(const MaskedSampleParams& params, const float* highest, int64_t* masses, void* stream);

void merge_outcomes(const MergeOutcomesParams& params, void* stream);

void merge_masses(const MergeMassesParams& params, void* stream);

}  // namespace structout::cuda
