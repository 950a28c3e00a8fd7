// masked_sample, compiled once per instruction set and dispatched at run time. The
// algorithm is in masked_sample_row.inc.
#include "cpu/masked_sample.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "common/draw_bound.h"
#include "common/sampling_row.h"
#include "cpu/capability.h"
#include "cpu/row_loop.h"
#include "cpu/widen.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace structout::cpu {
namespace {

#define STRUCTOUT_ROW_KERNELS "cpu/masked_sample_row.inc"
#include "cpu/instruction_sets.inc"
#undef STRUCTOUT_ROW_KERNELS

using SampleRow = Drawn (*)(const MaskedSampleParams&, int64_t row, Workspace&, const Team&);

SampleRow sample_row_kernel() {
#if defined(__x86_64__)
  switch (capability()) {
    case Capability::kAvx512:
      return avx512::sample_row;
    case Capability::kAvx2:
      return avx2::sample_row;
    default:
      break;
  }
#endif
  return plain::sample_row;
}

}  // namespace

void masked_sample(const MaskedSampleParams& params, int64_t num_threads, const ParallelFor& parallel_for) {
  const SampleRow sample_row = sample_row_kernel();
  const bool may_select = params.top_k.values != nullptr || params.top_p.values != nullptr;
  const auto visit = [&](int64_t row, const Team& team, Workspace& workspace) {
    const Drawn drawn = sample_row(params, row, workspace, team);
    if (params.shard_results != nullptr) {
      return store_shard_result(params.shard_results, params.num_rows, row, drawn.result);
    }
    params.ids[row] = drawn.result.token;
    if (params.logprobs != nullptr) params.logprobs[row] = drawn.logprob;
  };
  for_each_row(params.num_rows, splits_rows(params, may_select, num_threads), num_threads, parallel_for, visit);
}

}  // namespace structout::cpu
