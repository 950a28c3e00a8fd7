// Tensors to MaskedSampleParams, refusing bad input before anything is drawn. Shared by the CPU and CUDA bindings.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "masked_sample.h"

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

// All but the outputs, which the caller allocates for `num_rows` rows.
MaskedSampleParams masked_sample_params(const MaskedSampleTensors& tensors);

}  // namespace structout
