// masked_sample, compiled once per instruction set and dispatched at run time. The
// algorithm is in masked_sample_row.inc.
#include "cpu/masked_sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "common/draw_bound.h"
#include "common/sampling_row.h"
#include "cpu/capability.h"
#include "cpu/row_state.h"
#include "cpu/team.h"
#include "cpu/widen.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace structout::cpu {
namespace {

// -- one namespace per instruction set -------------------------------------------------

namespace plain {
#define STRUCTOUT_VECTOR_BITS 0
#include "cpu/masked_sample_lanes.inc"
#include "cpu/masked_sample_row.inc"
#undef STRUCTOUT_VECTOR_BITS
}  // namespace plain

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,popcnt,bmi,bmi2")
namespace avx2 {
#define STRUCTOUT_VECTOR_BITS 256
#include "cpu/masked_sample_lanes.inc"
#include "cpu/masked_sample_row.inc"
#undef STRUCTOUT_VECTOR_BITS
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi,bmi2,prefer-vector-width=512")
namespace avx512 {
#define STRUCTOUT_VECTOR_BITS 512
#include "cpu/masked_sample_lanes.inc"
#include "cpu/masked_sample_row.inc"
#undef STRUCTOUT_VECTOR_BITS
}  // namespace avx512
#pragma GCC pop_options
#endif

struct Kernels {
  Drawn (*sample_row)(const MaskedSampleParams&, int64_t row, Workspace&, const Team&);
  int64_t (*mass_of_row)(const MaskedSampleParams&, int64_t row, float highest, Workspace&, const Team&);
};

Kernels kernels() {
#if defined(__x86_64__)
  switch (capability()) {
    case Capability::kAvx512:
      return {avx512::sample_row, avx512::mass_of_row};
    case Capability::kAvx2:
      return {avx2::sample_row, avx2::mass_of_row};
    default:
      break;
  }
#endif
  return {plain::sample_row, plain::mass_of_row};
}

// Threads can share only the passes over a row's blocks. Lists and selections run on
// one thread. So rows are split if the other threads would idle, or if nothing has to
// be selected and there are at least two threads per long row.
bool splits_rows(const MaskedSampleParams& params, int64_t num_threads) {
  if (params.num_rows == 1) return true;
  const bool may_select = params.top_k.values != nullptr || params.top_p.values != nullptr;
  return !may_select && 2 * params.num_rows <= num_threads && params.num_columns() >= kMinSharedBlocks * kBlock;
}

// Calls visit(row, team, workspace) for every row.
template <class Visit>
void for_each_row(const MaskedSampleParams& params, int64_t num_threads, const ParallelFor& parallel_for,
                  const Visit& visit) {
  const auto visit_row = [&](int64_t row, const Team& team) {
    thread_local Workspace workspace;
    const KeepDenormals keep_denormals;
    visit(row, team, workspace);
  };
  if (splits_rows(params, num_threads)) {
    const Team all(num_threads, parallel_for);
    for (int64_t row = 0; row < params.num_rows; ++row) visit_row(row, all);
  } else {
    const Team alone(1, parallel_for);
    parallel_for(params.num_rows, [&](int64_t row) { visit_row(row, alone); });
  }
}

}  // namespace

void masked_sample(const MaskedSampleParams& params, int64_t num_threads, const ParallelFor& parallel_for) {
  const auto sample_row = kernels().sample_row;
  for_each_row(params, num_threads, parallel_for, [&](int64_t row, const Team& team, Workspace& workspace) {
    const Drawn drawn = sample_row(params, row, workspace, team);
    if (params.shard_results != nullptr) {
      return store_shard_result(params.shard_results, params.num_rows, row, drawn.result);
    }
    params.ids[row] = drawn.result.token;
    if (params.logprobs != nullptr) params.logprobs[row] = drawn.logprob;
  });
}

void shard_mass(const MaskedSampleParams& params, const float* highest, int64_t* masses, int64_t num_threads,
                const ParallelFor& parallel_for) {
  const auto mass_of_row = kernels().mass_of_row;
  for_each_row(params, num_threads, parallel_for, [&](int64_t row, const Team& team, Workspace& workspace) {
    const bool can_draw = highest[row] > kLowest;  // false for NaN
    masses[row] = can_draw ? mass_of_row(params, row, highest[row], workspace, team) : 0;
  });
}

}  // namespace structout::cpu
