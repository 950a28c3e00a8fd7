// Converts tensors to ApplyBitmaskParams and refuses bad input before anything is
// written. Shared by the CPU and CUDA bindings.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "common/apply_bitmask.h"

namespace structout {

ApplyBitmaskParams apply_bitmask_params(const torch::stable::Tensor& logits, const torch::stable::Tensor& bitmask,
                                        const std::optional<torch::stable::Tensor>& rows);

}  // namespace structout
