// apply_penalties and apply_logit_bias: both change the listed logits of each row in
// place. Their structs cross from the torch bindings to the CPU and CUDA kernels.
//
// Float operations are rounded one by one (compile without fused multiply-add), so
// every backend gives the bits of structout/ops/reference.py.
#pragma once

#include "common/masked_sample.h"
#include "common/sampling_math.h"

namespace structout {

// A list of tokens for each row, one after the other (CSR).
struct TokenLists {
  StridedIntegers indptr;     // [num_rows + 1]; row i lists entries indptr[i] ... indptr[i + 1]
  StridedIntegers token_ids;  // [num_entries]
  int64_t num_entries;

  struct Range {
    int64_t begin, end;
  };

  // The entries of a row. A indptr that is out of range or decreases cannot lead out
  // of the lists.
  STRUCTOUT_HOST_DEVICE Range entries(int64_t row) const {
    const int64_t begin = clamp(indptr.at(row)), end = clamp(indptr.at(row + 1));
    return {begin, end};
  }

 private:
  STRUCTOUT_HOST_DEVICE int64_t clamp(int64_t entry) const {
    return entry < 0 ? 0 : entry > num_entries ? num_entries : entry;
  }
};

struct ListedLogits {
  void* logits;  // [num_rows, vocab_size], last dimension contiguous
  int64_t num_rows;
  int64_t vocab_size;
  int64_t row_stride;  // in elements
  FloatFormat format;
  TokenLists lists;
};

struct PenaltiesParams : ListedLogits {
  StridedIntegers output_counts;                   // [num_entries]; 0: the token is in the prompt only
  Strided<float> repetition, frequency, presence;  // [num_rows]

  struct OfRow {
    float repetition, frequency, presence;
  };

  STRUCTOUT_HOST_DEVICE OfRow row_values(int64_t row) const {
    return {repetition.at(row), frequency.at(row), presence.at(row)};
  }

  STRUCTOUT_HOST_DEVICE float changed(float x, int64_t entry, const OfRow& values) const {
    const auto count = static_cast<float>(output_counts.at(entry));
    x = x > 0 ? x / values.repetition : x * values.repetition;
    x = x - values.frequency * count;
    return x - values.presence * (count > 0 ? 1.0f : 0.0f);
  }
};

struct LogitBiasParams : ListedLogits {
  Strided<float> bias;  // [num_entries]

  struct OfRow {};

  STRUCTOUT_HOST_DEVICE OfRow row_values(int64_t) const { return {}; }

  STRUCTOUT_HOST_DEVICE float changed(float x, int64_t entry, const OfRow&) const { return x + bias.at(entry); }
};

// Rounds a float to the nearest float16, ties to even, as every conversion here does.
STRUCTOUT_HOST_DEVICE uint16_t half_bits(float x) {
  const uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 2^16 or more
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the multiple of 2^-24 in the low bits, rounded.
    return static_cast<uint16_t>(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13));
}

STRUCTOUT_HOST_DEVICE uint16_t bfloat16_bits(float x) {
  const uint32_t bits = bits_of_float(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7fc0u);  // NaN
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace structout
