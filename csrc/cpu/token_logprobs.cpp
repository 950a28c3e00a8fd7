// The steps of token_logprobs, compiled once per instruction set and dispatched at run
// time. The algorithms are in token_logprobs_row.inc.
#include "cpu/token_logprobs.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "cpu/capability.h"
#include "cpu/widen.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace structout::cpu {
namespace {

#define STRUCTOUT_ROW_KERNELS "cpu/token_logprobs_row.inc"
#include "cpu/instruction_sets.inc"
#undef STRUCTOUT_ROW_KERNELS

struct Kernels {
  void (*top_tokens)(const TopTokensParams&, int64_t row, Workspace&, const Team&);
  void (*totals)(const RowTotalsParams&, int64_t row, Workspace&, const Team&);
};

Kernels kernels() {
#if defined(__x86_64__)
  switch (capability()) {
    case Capability::kAvx512:
      return {avx512::top_tokens_of_row, avx512::totals_of_row};
    case Capability::kAvx2:
      return {avx2::top_tokens_of_row, avx2::totals_of_row};
    default:
      break;
  }
#endif
  return {plain::top_tokens_of_row, plain::totals_of_row};
}

}  // namespace

void top_tokens(const TopTokensParams& params, int64_t num_threads, const ParallelFor& parallel_for) {
  const auto top_tokens_of_row = kernels().top_tokens;
  const auto visit = [&](int64_t row, const Team& team, Workspace& workspace) {
    if (!params.is_skipped(row)) return top_tokens_of_row(params, row, workspace, team);
    params.token_logits[row] = kLowest;
    params.store_no_top(row, 0);
  };
  for_each_row(params.num_rows, splits_rows(params, true, num_threads), num_threads, parallel_for, visit);
}

void row_totals(const RowTotalsParams& params, int64_t num_threads, const ParallelFor& parallel_for) {
  const auto totals_of_row = kernels().totals;
  const auto visit = [&](int64_t row, const Team& team, Workspace& workspace) {
    const bool has_tokens = params.highest.at(row) > kLowest;  // false for NaN
    return has_tokens ? totals_of_row(params, row, workspace, team) : params.store(row, 0, 0);
  };
  for_each_row(params.num_rows, splits_rows(params, false, num_threads), num_threads, parallel_for, visit);
}

}  // namespace structout::cpu
