// Packs the allowed logits of a shard, to send them to the rank that draws these rows.
// Disallowed logits never affect a draw, so they need not be sent. (Where a mask word
// allows nearly all of its 32 tokens, all 32 are.)
#pragma once

#include <vector>

#include "common/masked_logits.h"
#include "cpu/parallel_for.h"

namespace structout::cpu {

// The offset of each row in the packed logits, and their total size: [num_rows + 1], in
// elements.
std::vector<int64_t> packed_offsets(const MaskedLogits& shard, const ParallelFor& parallel_for);

void pack_allowed(const MaskedLogits& shard, const std::vector<int64_t>& offsets, void* packed,
                  const ParallelFor& parallel_for);

// Unpacks into `logits`, which have the layout of shard.logits. Elements that were not
// sent keep their value.
void unpack_allowed(const MaskedLogits& shard, void* logits, const std::vector<int64_t>& offsets, const void* packed,
                    const ParallelFor& parallel_for);

}  // namespace structout::cpu
