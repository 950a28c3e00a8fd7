// masked_sample: the struct that crosses from the torch bindings to the CPU and CUDA
// kernels.
#pragma once

#include "common/masked_logits.h"

namespace structout {

// Draws one token per row as docs/sampling_contract.md says. For a shard of the
// vocabulary it writes the shard's result instead.
struct MaskedSampleParams : MaskedLogits {
  Strided<float> temperature;
  StridedIntegers top_k;  // absent: 0
  Strided<float> top_p;   // absent: 1
  Strided<float> min_p;   // absent: 0
  Strided<int64_t> seed;
  Strided<int64_t> position;
  int64_t* ids;            // [num_rows], contiguous
  float* logprobs;         // [num_rows], contiguous; null: not wanted
  int32_t* shard_results;  // [kShardResultFields, num_rows]; if not null, written instead of ids and logprobs
};

}  // namespace structout
