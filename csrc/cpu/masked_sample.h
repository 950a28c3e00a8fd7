// masked_sample on the CPU.
#pragma once

#include <functional>

#include "common/masked_sample.h"

namespace structout::cpu {

// Runs task(0) ... task(count - 1), on any threads in any order, and waits for them.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& task)>;

// Threads take a row each; a row alone, and a few long ones without filters, are shared between them.
void masked_sample(const MaskedSampleParams& params, int64_t num_threads, const ParallelFor& parallel_for);

// Of each row, the mass that the allowed tokens of this shard have, where highest[row] is the highest logit of all.
void shard_mass(const MaskedSampleParams& params, const float* highest, int64_t* masses, int64_t num_threads,
                const ParallelFor& parallel_for);

}  // namespace structout::cpu
