// Rows of logits, or of a shard of their columns, and the masks that govern them. The
// base of the structs that cross from the torch bindings to the CPU and CUDA kernels.
#pragma once

#include "common/bitmask.h"
#include "common/float_format.h"

namespace structout {

// A mass is at most 2^40, so the sum over this many tokens fits in 63 bits.
constexpr int64_t kMaxSampledVocab = (int64_t{1} << 23) - 1;

struct MaskedLogits {
  const void* logits;  // [num_rows, vocab_end - vocab_begin], last dimension contiguous; only read
  int64_t num_rows;
  int64_t vocab_begin, vocab_end;  // token ids of the columns; masks always begin at token 0
  int64_t row_stride;              // in elements
  FloatFormat format;
  bool has_mask;  // false: every row is free
  Bitmask bitmask;
  StridedIntegers rows;

  STRUCTOUT_HOST_DEVICE int64_t num_columns() const { return vocab_end - vocab_begin; }

  // The address that the logit of token 0 would have, so that token ids serve as
  // indices. Null if there are no columns.
  template <class Element>
  STRUCTOUT_HOST_DEVICE const Element* token_0(int64_t row) const {
    return num_columns() == 0 ? nullptr : static_cast<const Element*>(logits) + row * row_stride - vocab_begin;
  }

  STRUCTOUT_HOST_DEVICE MaskRow mask_of(int64_t row) const {
    return has_mask ? mask_row(bitmask, rows, row) : MaskRow{nullptr, 0, true};
  }
};

}  // namespace structout
