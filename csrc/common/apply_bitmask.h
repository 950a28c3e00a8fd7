// apply_bitmask: the one struct that crosses from the torch bindings to the CPU and
// CUDA kernels.
#pragma once

#include "common/bitmask.h"

namespace structout {

// Writes -inf to every logit that its row's mask disallows. Others beside it may be
// written as they were.
struct ApplyBitmaskParams {
  void* logits;  // [num_rows, vocab_size], last dimension contiguous
  int64_t num_rows;
  int64_t vocab_size;
  int64_t row_stride;     // in elements
  int32_t element_bytes;  // 4 or 2
  uint32_t neg_inf;       // the bits of -inf in the logits' format
  Bitmask bitmask;
  StridedIntegers rows;  // for each logits row, the mask row that governs it
};

}  // namespace structout
