// The packed token bitmask (docs/mask_contract.md) as kernels see it: host and device, no torch.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define STRUCTOUT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define STRUCTOUT_HOST_DEVICE inline
#endif

namespace structout {

constexpr int64_t kBitsPerWord = 32;
constexpr uint32_t kAllAllowed = ~0u;

STRUCTOUT_HOST_DEVICE int64_t words_for(int64_t num_tokens) { return (num_tokens + kBitsPerWord - 1) / kBitsPerWord; }

// [num_rows, words_per_row], last dimension contiguous, any row stride (in words).
struct Bitmask {
  const uint32_t* words;
  int64_t num_rows;
  int64_t words_per_row;
  int64_t row_stride;
};

// For each logits row the bitmask row that governs it. `ids` null: row i is governed by row i.
struct RowMap {
  const void* ids;
  int64_t stride;
  bool is_int64;
};

// One mask row. Words past the end read as 0: what the mask does not mention is disallowed.
struct MaskRow {
  const uint32_t* words;
  int64_t num_words;
  bool is_free;  // row id -1: leave the logits alone

  STRUCTOUT_HOST_DEVICE uint32_t word(int64_t i) const { return i < num_words ? words[i] : 0u; }
};

// Fails closed: an id outside [-1, num_rows) gives an empty row, which allows nothing and reads nothing.
STRUCTOUT_HOST_DEVICE MaskRow mask_row(const Bitmask& mask, const RowMap& rows, int64_t logits_row) {
  int64_t id = logits_row;
  if (rows.ids != nullptr) {
    const int64_t at = logits_row * rows.stride;
    id = rows.is_int64 ? static_cast<const int64_t*>(rows.ids)[at] : static_cast<const int32_t*>(rows.ids)[at];
  }
  if (id < 0 || id >= mask.num_rows) return {nullptr, 0, id == -1};
  return {mask.words + id * mask.row_stride, mask.words_per_row, false};
}

}  // namespace structout
