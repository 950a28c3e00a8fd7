// The allowed logits of a shard packed one after the other, for the rank that is to draw from these rows: what a mask
// forbids matters to nobody, so it need not travel. (Where nearly all of a mask's word is allowed, all of it does.)
#pragma once

#include <vector>

#include "cpu/masked_sample.h"

namespace structout::cpu {

// Where each row begins in the packed logits, and where the last one ends: [num_rows + 1], in elements.
std::vector<int64_t> packed_places(const MaskedSampleParams& params, const ParallelFor& parallel_for);

void pack_allowed(const MaskedSampleParams& params, const std::vector<int64_t>& places, void* packed,
                  const ParallelFor& parallel_for);

// The other way round, into `logits`, which lie as params.logits do. What is not allowed is left as it is.
void unpack_allowed(const MaskedSampleParams& params, void* logits, const std::vector<int64_t>& places,
                    const void* packed, const ParallelFor& parallel_for);

}  // namespace structout::cpu
