// masked_sample: the one struct that crosses from the torch bindings to the CPU and
// CUDA kernels.
#pragma once

#include "common/bitmask.h"
#include "common/float_format.h"

namespace structout {

// A mass is at most 2^40, so the sum over this many tokens fits in 63 bits.
constexpr int64_t kMaxSampledVocab = (int64_t{1} << 23) - 1;

// Draws one token per row as docs/sampling_contract.md says. For a shard of the
// vocabulary it writes the shard's result instead. Logits are only read.
struct MaskedSampleParams {
  const void* logits;  // [num_rows, vocab_end - vocab_begin], last dimension contiguous
  int64_t num_rows;
  int64_t vocab_begin, vocab_end;  // token ids of the columns; masks always begin at token 0
  int64_t row_stride;              // in elements
  FloatFormat format;
  bool has_mask;  // false: every row is free
  Bitmask bitmask;
  StridedIntegers rows;
  Strided<float> temperature;
  StridedIntegers top_k;  // absent: 0
  Strided<float> top_p;   // absent: 1
  Strided<float> min_p;   // absent: 0
  Strided<int64_t> seed;
  Strided<int64_t> position;
  int64_t* ids;            // [num_rows], contiguous
  float* logprobs;         // [num_rows], contiguous; null: not wanted
  int32_t* shard_results;  // [kShardResultFields, num_rows]; if not null, written instead of ids and logprobs

  STRUCTOUT_HOST_DEVICE int64_t num_columns() const { return vocab_end - vocab_begin; }

  // Where the logit of token 0 would be, so that token ids serve as indices. Null where
  // there are no columns.
  template <class Element>
  STRUCTOUT_HOST_DEVICE const Element* token_0(int64_t row) const {
    return num_columns() == 0 ? nullptr : static_cast<const Element*>(logits) + row * row_stride - vocab_begin;
  }
};

}  // namespace structout
