#include "cpu/fsm_states.h"

#include <algorithm>
#include <vector>

namespace structout::cpu {
namespace {

constexpr int64_t kWordsPerTask = 512;  // some 50 µs of work

// Computes words [begin, end) of the mask of states[row].
void compute_words(const FsmRowsParams& params, int64_t row, int64_t begin, int64_t end) {
  const FsmTables& tables = params.tables;
  const int32_t state = params.states.at(row);
  uint32_t* mask = params.masks + (params.num_slots + row) * params.row_stride;
  for (int64_t word = begin; word < end; ++word) {
    const int64_t first = word * kBitsPerWord, count = std::min(kBitsPerWord, tables.vocab_size - first);
    uint32_t bits = 0;
    for (int64_t i = 0; i < count; ++i) bits |= uint32_t{tables.after_text(state, first + i) >= 0} << i;
    mask[word] = tables.with_stop_tokens(state, word, bits);
  }
}

}  // namespace

void fsm_rows(const FsmRowsParams& params, const ParallelFor& parallel_for) {
  std::vector<int64_t> missing;
  for (int64_t row = 0; row < params.num_rows; ++row) {
    params.rows[row] = params.mask_row(row);
    if (params.rows[row] >= params.num_slots) missing.push_back(row);
  }
  if (missing.empty()) return;
  *params.num_computed += static_cast<int64_t>(missing.size());
  const int64_t tasks_per_row = (params.words_per_row + kWordsPerTask - 1) / kWordsPerTask;
  parallel_for(static_cast<int64_t>(missing.size()) * tasks_per_row, [&](int64_t task) {
    const int64_t begin = task % tasks_per_row * kWordsPerTask;
    compute_words(params, missing[task / tasks_per_row], begin, std::min(begin + kWordsPerTask, params.words_per_row));
  });
}

}  // namespace structout::cpu
