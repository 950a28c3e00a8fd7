// masked_sample on the CPU.
#pragma once

#include "common/masked_sample.h"
#include "cpu/parallel_for.h"

namespace structout::cpu {

// Each thread samples whole rows. A single row, and a few long rows without filters,
// are split among the threads.
void masked_sample(const MaskedSampleParams& params, int64_t num_threads, const ParallelFor& parallel_for);

}  // namespace structout::cpu
