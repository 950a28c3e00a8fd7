#include "cpu/fsm_states.h"

#include <algorithm>
#include <vector>

namespace structout::cpu {
namespace {

constexpr int64_t kWordsPerTask = 512;  // fewer take less time than waking a thread

// Tokens are at random places of the tables. So the first loads of several rows are made
// at once, each kind for all rows before the next kind, which depends on it.
constexpr int64_t kRowsAhead = 32;

// Computes one word of the mask of states[row].
void compute_word(const FsmRowsParams& params, int64_t row, int64_t word) {
  const FsmTables& tables = params.tables;
  const int32_t state = params.states.at(row);
  const int64_t first = word * kBitsPerWord, count = std::min(kBitsPerWord, tables.vocab_size - first);
  uint32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits |= uint32_t{tables.after_text(state, first + i) >= 0} << i;
  params.masks[(params.num_slots + row) * params.row_stride + word] = tables.with_stop_tokens(state, word, bits);
}

}  // namespace

void fsm_advance(const FsmAdvanceParams& params, int64_t begin, int64_t end) {
  const FsmTables& tables = params.tables;
  struct Row {
    int64_t token;
    int32_t state;
    bool is_walked;
  } rows[kRowsAhead];
  for (; begin < end; begin += kRowsAhead) {
    const int64_t count = std::min(kRowsAhead, end - begin);
    for (int64_t i = 0; i < count; ++i) {
      Row& row = rows[i];
      row = {params.tokens.at(begin + i), params.states[(begin + i) * params.states_stride], false};
      row.is_walked = tables.is_state(row.state) && row.token >= 0 && row.token < tables.vocab_size;
      if (row.is_walked) __builtin_prefetch(tables.token_begin + row.token);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (!rows[i].is_walked) continue;
      const int32_t first = tables.token_begin[rows[i].token];
      rows[i].is_walked = first >= 0 && first < tables.num_bytes;
      if (rows[i].is_walked) __builtin_prefetch(tables.token_bytes + first);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (!rows[i].is_walked) continue;
      const uint8_t byte = tables.token_bytes[tables.token_begin[rows[i].token]];
      __builtin_prefetch(tables.transitions + rows[i].state * kNumByteValues + byte);
      __builtin_prefetch(tables.state_flags + rows[i].state);
    }
    for (int64_t i = 0; i < count; ++i) params.run(begin + i);
  }
}

void fsm_rows(const FsmRowsParams& params, const ParallelFor& parallel_for) {
  std::vector<int64_t> missing;
  for (int64_t row = 0; row < params.num_rows; ++row) {
    params.rows[row] = params.mask_row(row);
    if (params.rows[row] >= params.num_slots) missing.push_back(row);
  }
  if (missing.empty()) return;
  *params.num_computed += static_cast<int64_t>(missing.size());
  const int64_t num_words = static_cast<int64_t>(missing.size()) * params.words_per_row;
  parallel_for((num_words + kWordsPerTask - 1) / kWordsPerTask, [&](int64_t task) {
    const int64_t end = std::min(num_words, (task + 1) * kWordsPerTask);
    for (int64_t i = task * kWordsPerTask; i < end; ++i) {
      compute_word(params, missing[i / params.words_per_row], i % params.words_per_row);
    }
  });
}

}  // namespace structout::cpu
