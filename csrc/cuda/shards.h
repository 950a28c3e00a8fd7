// The part of sharded_masked_sample that runs on one rank's GPU after masked_sample
// itself.
#pragma once

#include "common/shard_result.h"

namespace structout::cuda {

void merge_shard_results(const MergeShardResultsParams& params, void* stream);

}  // namespace structout::cuda
