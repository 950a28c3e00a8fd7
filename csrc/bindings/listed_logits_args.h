// Converts tensors to the params of apply_penalties and apply_logit_bias, and refuses
// bad input before anything is written. Shared by the CPU and CUDA bindings.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "common/listed_logits.h"

namespace structout {

PenaltiesParams penalties_params(const torch::stable::Tensor& logits, const torch::stable::Tensor& indptr,
                                 const torch::stable::Tensor& token_ids, const torch::stable::Tensor& output_counts,
                                 const torch::stable::Tensor& repetition, const torch::stable::Tensor& frequency,
                                 const torch::stable::Tensor& presence);

LogitBiasParams logit_bias_params(const torch::stable::Tensor& logits, const torch::stable::Tensor& indptr,
                                  const torch::stable::Tensor& token_ids, const torch::stable::Tensor& bias);

}  // namespace structout
