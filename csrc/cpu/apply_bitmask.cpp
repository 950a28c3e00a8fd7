// logits[n, v] = -inf where bit v of bitmask[rows[n]] is 0.
//
// A tile is a run of whole mask words of one row. Each word of 32 tokens is skipped if
// it allows all of them, filled by plain stores if it allows none, and otherwise
// written by masked stores. Logits are only written: a fully masked row costs what
// fill_(-inf) costs, and a fully allowed one costs the read of its mask, 1/32 (float32)
// or 1/16 (16-bit) of that.
#include "cpu/apply_bitmask.h"

#include <algorithm>
#include <cstring>

#include "cpu/capability.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace structout::cpu {
namespace {

// From 32 Ki tokens, the least that is worth waking a thread, to 256 Ki: longer runs of
// stores are faster.
constexpr int64_t kMinTileWords = 1024;
constexpr int64_t kMaxTileWords = 8192;
constexpr int64_t kTilesPerThread = 8;

template <class T>
using MaskWords = void (*)(T* logits, const uint32_t* words, int64_t num_words, T neg_inf);

template <class T>
void mask_bits(T* logits, uint32_t disallowed, T neg_inf) {
  for (; disallowed != 0; disallowed &= disallowed - 1) logits[__builtin_ctz(disallowed)] = neg_inf;
}

#define STRUCTOUT_ROW_KERNELS "cpu/apply_bitmask_row.inc"
#include "cpu/instruction_sets.inc"
#undef STRUCTOUT_ROW_KERNELS

template <class T>
MaskWords<T> mask_words_kernel() {
#if defined(__x86_64__)
  switch (capability()) {
    case Capability::kAvx512:
      return avx512::mask_words<T>;
    case Capability::kAvx2:
      return avx2::mask_words<T>;
    default:
      break;
  }
#endif
  return plain::mask_words<T>;
}

template <class T>
void mask_tokens(const ApplyBitmaskParams& params, int64_t row, int64_t begin, int64_t end) {
  const MaskRow mask = mask_row(params.bitmask, params.rows, row);
  if (mask.is_free) return;
  const T neg_inf = static_cast<T>(params.neg_inf);
  T* logits = static_cast<T*>(params.logits) + row * params.row_stride;
  const int64_t covered_end = std::clamp(mask.num_words * kBitsPerWord, begin, end);
  const int64_t first_word = begin / kBitsPerWord;
  const int64_t whole_words = (covered_end - begin) / kBitsPerWord;

  mask_words_kernel<T>()(logits + begin, mask.words + first_word, whole_words, neg_inf);
  const int64_t tail = begin + whole_words * kBitsPerWord;
  if (tail < covered_end) {
    const uint32_t past_end = kAllAllowed << (covered_end - tail);
    mask_bits(logits + tail, ~(mask.words[first_word + whole_words] | past_end), neg_inf);
  }
  std::fill(logits + covered_end, logits + end, neg_inf);
}

}  // namespace

ApplyBitmaskTiles::ApplyBitmaskTiles(const ApplyBitmaskParams& params, int64_t num_threads) : params_(params) {
  const int64_t num_words = params.num_rows * words_for(params.vocab_size);
  num_threads_ = std::clamp<int64_t>(num_words / kMinTileWords, 1, num_threads);
  tile_tokens_ = std::clamp(num_words / (num_threads_ * kTilesPerThread), kMinTileWords, kMaxTileWords) * kBitsPerWord;
  tiles_per_row_ = (params.vocab_size + tile_tokens_ - 1) / tile_tokens_;
}

int64_t ApplyBitmaskTiles::size() const { return params_.num_rows * tiles_per_row_; }

int64_t ApplyBitmaskTiles::num_threads() const { return num_threads_; }

void ApplyBitmaskTiles::run(int64_t tile) const {
  const int64_t row = tile / tiles_per_row_;
  const int64_t begin = tile % tiles_per_row_ * tile_tokens_;
  const int64_t end = std::min(begin + tile_tokens_, params_.vocab_size);
  const auto mask = params_.element_bytes == 4 ? mask_tokens<uint32_t> : mask_tokens<uint16_t>;
  mask(params_, row, begin, end);
}

}  // namespace structout::cpu
