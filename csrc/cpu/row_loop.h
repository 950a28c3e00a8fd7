// Runs a kernel over all rows, on one or several threads per row.
#pragma once

#include "cpu/row_state.h"
#include "cpu/team.h"

namespace structout::cpu {

// Calls visit(row, team, workspace) for every row. If `splits_rows`, all threads work on
// one row after another; otherwise each takes whole rows. Threads can share only the
// passes over a row's blocks; lists and selections run on one thread.
template <class Visit>
void for_each_row(int64_t num_rows, bool splits_rows, int64_t num_threads, const ParallelFor& parallel_for,
                  const Visit& visit) {
  const auto visit_row = [&](int64_t row, const Team& team) {
    thread_local Workspace workspace;
    const KeepDenormals keep_denormals;
    visit(row, team, workspace);
  };
  if (splits_rows) {
    const Team all(num_threads, parallel_for);
    for (int64_t row = 0; row < num_rows; ++row) visit_row(row, all);
  } else {
    const Team alone(1, parallel_for);
    parallel_for(num_rows, [&](int64_t row) { visit_row(row, alone); });
  }
}

// True if the threads should share each row: with a single row, or with half as many
// rows as threads or fewer, if the rows are long and nothing is selected. Selections run
// on one thread.
inline bool splits_rows(const MaskedLogits& logits, bool may_select, int64_t num_threads) {
  if (logits.num_rows == 1) return true;
  return !may_select && 2 * logits.num_rows <= num_threads && logits.num_columns() >= kMinSharedBlocks * kBlock;
}

}  // namespace structout::cpu
