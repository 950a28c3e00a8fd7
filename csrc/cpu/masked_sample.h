// masked_sample on the CPU.
#pragma once

#include <functional>

#include "common/masked_sample.h"

namespace structout::cpu {

// Runs task(0) ... task(count - 1) on any threads in any order, and waits for them.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& task)>;

// Each thread samples whole rows. A single row, and a few long rows without filters,
// are split among the threads.
void masked_sample(const MaskedSampleParams& params, int64_t num_threads, const ParallelFor& parallel_for);

// masses[row] = the mass of this shard's allowed tokens, where highest[row] is the
// highest allowed logit of the whole row.
void shard_mass(const MaskedSampleParams& params, const float* highest, int64_t* masses, int64_t num_threads,
                const ParallelFor& parallel_for);

}  // namespace structout::cpu
