// Tensors of the ops that work on shards of a vocabulary. Shared by the CPU and CUDA bindings.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "bindings/masked_sample_args.h"
#include "common/shard_result.h"

namespace structout {

// int32 [kOutcomeFields, num_rows]
template <class Kernel>
torch::stable::Tensor outcomes_of_shard(const MaskedSampleTensors& tensors, int64_t vocab_begin, const Kernel& kernel) {
  MaskedSampleParams params = shard_params(tensors, vocab_begin);
  auto outcomes =
      torch::stable::new_empty(tensors.logits, {kOutcomeFields, params.num_rows}, torch::headeronly::ScalarType::Int);
  params.outcomes = static_cast<int32_t*>(outcomes.data_ptr());
  if (params.num_rows > 0) kernel(params);
  return outcomes;
}

MergeOutcomesParams merge_outcomes_params(const torch::stable::Tensor& outcomes,
                                          const torch::stable::Tensor& temperature);
MergeMassesParams merge_masses_params(const torch::stable::Tensor& masses, const torch::stable::Tensor& merged,
                                      const torch::stable::Tensor& temperature);

// The first row of merged outcomes, for `num_rows` rows of logits.
const float* highest_of(const torch::stable::Tensor& merged, const torch::stable::Tensor& logits, int64_t num_rows);

template <class Kernel>
std::tuple<torch::stable::Tensor, torch::stable::Tensor> merged_outcomes(const torch::stable::Tensor& outcomes,
                                                                         const torch::stable::Tensor& temperature,
                                                                         const Kernel& kernel) {
  MergeOutcomesParams params = merge_outcomes_params(outcomes, temperature);
  auto ids = torch::stable::new_empty(outcomes, {params.num_rows}, torch::headeronly::ScalarType::Long);
  auto merged = torch::stable::new_empty(outcomes, {kOutcomeFields, params.num_rows});
  params.ids = static_cast<int64_t*>(ids.data_ptr());
  params.merged = static_cast<int32_t*>(merged.data_ptr());
  if (params.num_rows > 0) kernel(params);
  return {ids, merged};
}

template <class Kernel>
torch::stable::Tensor merged_logprobs(const torch::stable::Tensor& masses, const torch::stable::Tensor& merged,
                                      const torch::stable::Tensor& temperature, const Kernel& kernel) {
  MergeMassesParams params = merge_masses_params(masses, merged, temperature);
  auto logprobs = torch::stable::new_empty(masses, {params.num_rows}, torch::headeronly::ScalarType::Float);
  params.logprobs = static_cast<float*>(logprobs.data_ptr());
  if (params.num_rows > 0) kernel(params);
  return logprobs;
}

}  // namespace structout
