// Converts tensors to MaskedSampleParams and refuses bad input before anything is
// drawn. Shared by the CPU and CUDA bindings.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

#include "common/masked_sample.h"

namespace structout {

// The tensors of torch.ops.structout.masked_sample, in the schema's order.
struct MaskedSampleTensors {
  const torch::stable::Tensor& logits;
  const std::optional<torch::stable::Tensor>& bitmask;
  const std::optional<torch::stable::Tensor>& rows;
  const torch::stable::Tensor& temperature;
  const std::optional<torch::stable::Tensor>& top_k;
  const std::optional<torch::stable::Tensor>& top_p;
  const std::optional<torch::stable::Tensor>& min_p;
  const torch::stable::Tensor& seed;
  const torch::stable::Tensor& position;
};

// Everything but the outputs, which the caller allocates for `num_rows` rows.
MaskedSampleParams masked_sample_params(const MaskedSampleTensors& tensors);

// The parameters for a shard whose first column is token `vocab_begin`, without the
// outputs. The shard may have no columns.
MaskedSampleParams shard_params(const MaskedSampleTensors& tensors, int64_t vocab_begin);

// The logits and the mask alone.
MaskedLogits masked_logits(const char* op, const torch::stable::Tensor& logits,
                           const std::optional<torch::stable::Tensor>& bitmask,
                           const std::optional<torch::stable::Tensor>& rows);

MaskedLogits masked_logits_of_shard(const torch::stable::Tensor& logits,
                                    const std::optional<torch::stable::Tensor>& bitmask,
                                    const std::optional<torch::stable::Tensor>& rows, int64_t vocab_begin);

// Allocates the outputs and runs `kernel(params)` if there is a row.
template <class Kernel>
torch::stable::Tensor draw_ids(const MaskedSampleTensors& tensors, const Kernel& kernel) {
  MaskedSampleParams params = masked_sample_params(tensors);
  auto ids = torch::stable::new_empty(tensors.logits, {params.num_rows}, torch::headeronly::ScalarType::Long);
  params.ids = static_cast<int64_t*>(ids.data_ptr());
  if (params.num_rows > 0) kernel(params);
  return ids;
}

template <class Kernel>
std::tuple<torch::stable::Tensor, torch::stable::Tensor> draw_ids_and_logprobs(const MaskedSampleTensors& tensors,
                                                                               const Kernel& kernel) {
  MaskedSampleParams params = masked_sample_params(tensors);
  auto ids = torch::stable::new_empty(tensors.logits, {params.num_rows}, torch::headeronly::ScalarType::Long);
  auto logprobs = torch::stable::new_empty(tensors.logits, {params.num_rows}, torch::headeronly::ScalarType::Float);
  params.ids = static_cast<int64_t*>(ids.data_ptr());
  params.logprobs = static_cast<float*>(logprobs.data_ptr());
  if (params.num_rows > 0) kernel(params);
  return {ids, logprobs};
}

}  // namespace structout
