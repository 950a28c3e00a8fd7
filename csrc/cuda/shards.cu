// merge_shard_results: one thread per row, over 12 or 16 bytes of each shard.
#include "cuda/run_rows.cuh"
#include "cuda/shards.h"

namespace structout::cuda {

void merge_shard_results(const MergeShardResultsParams& params, void* stream) {
  launch_rows(params, params.num_rows, stream);
}

}  // namespace structout::cuda
