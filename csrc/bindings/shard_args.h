// Converts the tensors of the ops that work on vocabulary shards. Shared by the CPU and
// CUDA bindings.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "bindings/masked_sample_args.h"
#include "common/shard_result.h"

namespace structout {

// Allocates and returns the shard result, int32 [kShardResultFields, num_rows].
template <class Kernel>
torch::stable::Tensor draw_shard_result(const MaskedSampleTensors& tensors, int64_t vocab_begin, const Kernel& kernel) {
  MaskedSampleParams params = shard_params(tensors, vocab_begin);
  auto shard_results = torch::stable::new_empty(tensors.logits, {kShardResultFields, params.num_rows},
                                                torch::headeronly::ScalarType::Int);
  params.shard_results = static_cast<int32_t*>(shard_results.data_ptr());
  if (params.num_rows > 0) kernel(params);
  return shard_results;
}

MergeShardResultsParams merge_shard_results_params(const torch::stable::Tensor& shard_results,
                                                   const torch::stable::Tensor& temperature);

template <class Kernel>
std::tuple<torch::stable::Tensor, torch::stable::Tensor> merge_results(const torch::stable::Tensor& shard_results,
                                                                       const torch::stable::Tensor& temperature,
                                                                       const Kernel& kernel) {
  MergeShardResultsParams params = merge_shard_results_params(shard_results, temperature);
  auto ids = torch::stable::new_empty(shard_results, {params.num_rows}, torch::headeronly::ScalarType::Long);
  auto merged = torch::stable::new_empty(shard_results, {kShardResultFields, params.num_rows});
  params.ids = static_cast<int64_t*>(ids.data_ptr());
  params.merged = static_cast<int32_t*>(merged.data_ptr());
  if (params.num_rows > 0) kernel(params);
  return {ids, merged};
}

}  // namespace structout
