// The parts of sharded_masked_sample that run on one rank's GPU beside masked_sample
// itself.
#pragma once

#include "common/shard_result.h"
#include "cuda/masked_sample.h"

namespace structout::cuda {

// masses[row] = the mass of this shard's allowed tokens, where highest[row] is the
// highest allowed logit of the whole row.
void shard_mass(const MaskedSampleParams& params, const float* highest, int64_t* masses, void* stream);

void merge_shard_results(const MergeShardResultsParams& params, void* stream);

void merge_masses(const MergeMassesParams& params, void* stream);

}  // namespace structout::cuda
