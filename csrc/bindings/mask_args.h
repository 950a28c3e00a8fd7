// Checks and converts the arguments `bitmask` and `rows`, which several ops share.
#pragma once

#include <optional>

#include "bindings/tensor_checks.h"
#include "common/bitmask.h"

namespace structout {

struct MaskArgs {
  Bitmask bitmask;
  StridedIntegers rows;
};

// Refuses a mask or a row map that does not fit `num_rows` rows of logits.
MaskArgs mask_args(const char* op, const Tensor& bitmask, const std::optional<Tensor>& rows, const Tensor& logits,
                   int64_t num_rows);

}  // namespace structout
