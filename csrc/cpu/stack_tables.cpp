#include "cpu/stack_tables.h"

#include <algorithm>

namespace structout::cpu {
namespace {

// Rows and tokens are at random places of memory. So the first loads of several rows are
// made at once, each kind for all rows before the next kind, which depends on it.
constexpr int64_t kRowsAhead = 32;

template <class Params>
const int32_t* row_of(const Params& params, int64_t row) {
  return params.stacks + row * params.row_stride;
}

template <class Params>
void prefetch_rows(const Params& params, int64_t begin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) __builtin_prefetch(row_of(params, begin + i));
}

// The fields of the tops, and the frame below each.
template <class Params>
void prefetch_tops(const Params& params, int64_t begin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t* row = row_of(params, begin + i);
    const int32_t top = row[kTopColumn], depth = row[kDepthColumn * params.column_stride];
    if (params.tables.is_state(top)) __builtin_prefetch(params.tables.states + top * kStateFields);
    if (depth > 0 && depth <= params.max_depth) {
      __builtin_prefetch(row + (kFramesColumn + (depth - 1) * kFrameColumns) * params.column_stride);
    }
  }
}

}  // namespace

void stack_advance(const StackAdvanceParams& params, int64_t begin, int64_t end) {
  const StackTables& tables = params.tables;
  for (; begin < end; begin += kRowsAhead) {
    const int64_t count = std::min(kRowsAhead, end - begin);
    int64_t tokens[kRowsAhead];
    prefetch_rows(params, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      tokens[i] = params.tokens.at(begin + i);
      if (tokens[i] < 0 || tokens[i] >= tables.vocab_size) tokens[i] = -1;
      if (tokens[i] >= 0) __builtin_prefetch(tables.token_begin + tokens[i]);
    }
    prefetch_tops(params, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      if (tokens[i] < 0) continue;
      const int32_t first = tables.token_begin[tokens[i]];
      if (first < 0 || first >= tables.num_bytes) tokens[i] = -1;
      if (tokens[i] >= 0) __builtin_prefetch(tables.token_bytes + first);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int32_t top = row_of(params, begin + i)[kTopColumn];
      if (tokens[i] < 0 || !tables.is_state(top)) continue;
      const uint8_t byte = tables.token_bytes[tables.token_begin[tokens[i]]];
      const int64_t map = tables.field(top, kClassMapField);
      if (map < 0 || map >= tables.num_class_maps) continue;
      __builtin_prefetch(tables.class_maps + map * 256 + byte);
      __builtin_prefetch(tables.cells + tables.field(top, kActionsField));
    }
    for (int64_t i = 0; i < count; ++i) params.run(begin + i);
  }
}

void stack_rows(const StackRowsParams& params, int64_t begin, int64_t end) {
  for (; begin < end; begin += kRowsAhead) {
    const int64_t count = std::min(kRowsAhead, end - begin);
    prefetch_rows(params, begin, count);
    prefetch_tops(params, begin, count);
    for (int64_t i = 0; i < count; ++i) params.run(begin + i);
  }
}

}  // namespace structout::cpu
