// The arguments that ops with a mask share.
#pragma once

#include <optional>

#include "common/bitmask.h"
#include "bindings/tensor_checks.h"

namespace structout {

struct MaskArgs {
  Bitmask bitmask;
  StridedIntegers rows;
};

// Refuses a mask or row map that does not fit `num_rows` rows of logits.
MaskArgs mask_args(const char* op, const Tensor& bitmask, const std::optional<Tensor>& rows, const Tensor& logits,
                   int64_t num_rows);

}  // namespace structout
