// The packed token bitmask (docs/mask_contract.md) as kernels read it. Host and device.
#pragma once

#include "common/strided.h"

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

// One mask row. Words past the end read as 0, because tokens that the mask does not
// cover are disallowed.
struct MaskRow {
  const uint32_t* words;
  int64_t num_words;
  bool is_free;  // row id -1: leave the logits alone

  // The number of words that hold bits of tokens below `vocab_end`.
  STRUCTOUT_HOST_DEVICE int64_t words_within(int64_t vocab_end) const {
    return num_words < words_for(vocab_end) ? num_words : words_for(vocab_end);
  }
  STRUCTOUT_HOST_DEVICE uint32_t word(int64_t i) const { return i < num_words ? words[i] : 0u; }
  STRUCTOUT_HOST_DEVICE uint64_t two_words(int64_t i) const { return word(i) | uint64_t{word(i + 1)} << 32; }
};

// The mask row that governs a row of logits: rows[i], or i if `rows` is absent. A row
// id outside [-1, num_rows) gives an empty mask, which allows nothing and is never
// read.
STRUCTOUT_HOST_DEVICE MaskRow mask_row(const Bitmask& mask, const StridedIntegers& rows, int64_t logits_row) {
  const int64_t id = rows.values == nullptr ? logits_row : rows.at(logits_row);
  if (id < 0 || id >= mask.num_rows) return {nullptr, 0, id == -1};
  return {mask.words + id * mask.row_stride, mask.words_per_row, false};
}

}  // namespace structout
