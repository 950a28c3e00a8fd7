// Converts tensors to PushAllGatherParams and PushRowsParams and refuses bad input
// before anything is pushed.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "common/push.h"

namespace structout {

// The integer arguments of a push op, in the schema's order. Addresses are device
// addresses; 0: null.
struct PushGroupNumbers {
  int64_t buffers, multicast, rank, world_size, gather_capacity, token, timeout_ns;
};

PushAllGatherParams push_all_gather_params(const torch::stable::Tensor& shard, const torch::stable::Tensor& out,
                                           const torch::stable::Tensor& state, const PushGroupNumbers& group,
                                           int64_t fill_on_error);

PushRowsParams push_rows_params(const torch::stable::Tensor& logits,
                                const std::optional<torch::stable::Tensor>& bitmask,
                                const std::optional<torch::stable::Tensor>& rows, const torch::stable::Tensor& rows_out,
                                const torch::stable::Tensor& state, const PushGroupNumbers& group,
                                int64_t rows_capacity, int64_t vocab_begin, int64_t vocab_size);

// Refuses a world size or a capacity that the layout does not support.
PushLayout push_layout(const char* op, int64_t world_size, int64_t gather_capacity);

}  // namespace structout
