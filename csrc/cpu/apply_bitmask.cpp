// logits[n, v] = -inf where bit v of bitmask[rows[n]] is 0.
//
// A tile is a run of whole mask words of one row. Each word of 32 tokens is skipped if
// it allows all of them, filled by plain stores if it allows none, and otherwise
// written by masked stores. Logits are only written: a fully masked row costs what
// fill_(-inf) costs, and a fully allowed one costs the read of its mask, 1/32 (float32)
// or 1/16 (16-bit) of that.
#include "cpu/apply_bitmask.h"

#include <algorithm>

#include "cpu/capability.h"

#if defined(__x86_64__)
#include <immintrin.h>
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

template <class T>
void mask_words_default(T* logits, const uint32_t* words, int64_t num_words, T neg_inf) {
  for (int64_t i = 0; i < num_words; ++i, logits += kBitsPerWord) {
    if (words[i] == kAllAllowed) continue;
    if (words[i] == 0) {
      std::fill_n(logits, kBitsPerWord, neg_inf);
    } else {
      mask_bits(logits, ~words[i], neg_inf);
    }
  }
}

#if defined(__x86_64__)

#define STRUCTOUT_AVX2 __attribute__((target("avx2")))
#define STRUCTOUT_AVX512 __attribute__((target("avx512f,avx512bw,popcnt,prfchw")))

STRUCTOUT_AVX2 inline void store_word(uint32_t* logits, uint32_t allowed, __m256i neg_inf) {
  const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (int byte = 0; byte < 4; ++byte) {
    const __m256i bits = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(allowed >> (8 * byte))), lane_bit);
    const __m256i disallowed = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
    _mm256_maskstore_epi32(reinterpret_cast<int*>(logits + 8 * byte), disallowed, neg_inf);
  }
}

// AVX2 has no masked store of 16-bit lanes, so the allowed logits of a mixed word are
// read and written back.
STRUCTOUT_AVX2 inline void store_word(uint16_t* logits, uint32_t allowed, __m256i neg_inf) {
  const __m256i lane_bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
                                             static_cast<short>(0x8000));
  for (int half = 0; half < 2; ++half) {
    auto* lanes = reinterpret_cast<__m256i*>(logits + 16 * half);
    const __m256i bits = _mm256_and_si256(_mm256_set1_epi16(static_cast<short>(allowed >> (16 * half))), lane_bit);
    const __m256i disallowed = _mm256_cmpeq_epi16(bits, _mm256_setzero_si256());
    _mm256_storeu_si256(lanes, _mm256_blendv_epi8(_mm256_loadu_si256(lanes), neg_inf, disallowed));
  }
}

template <class T>
STRUCTOUT_AVX2 void mask_words_avx2(T* logits, const uint32_t* words, int64_t num_words, T neg_inf) {
  const __m256i fill =
      sizeof(T) == 4 ? _mm256_set1_epi32(static_cast<int>(neg_inf)) : _mm256_set1_epi16(static_cast<short>(neg_inf));
  for (int64_t i = 0; i < num_words; ++i, logits += kBitsPerWord) {
    if (words[i] == kAllAllowed) continue;
    if (words[i] == 0) {
      for (size_t j = 0; j < sizeof(T); ++j) _mm256_storeu_si256(reinterpret_cast<__m256i*>(logits) + j, fill);
    } else {
      store_word(logits, words[i], fill);
    }
  }
}

// If a word disallows many tokens, so do the words after it, and their cache lines are
// prefetched. If it disallows few, most of those lines would be fetched in vain.
STRUCTOUT_AVX512 inline void prefetch_ahead(const void* logits, uint32_t disallowed) {
  constexpr int kManyTokens = 5;
  constexpr int kBytesAhead = 1024;
  if (__builtin_popcount(disallowed) >= kManyTokens) {
    __builtin_prefetch(static_cast<const char*>(logits) + kBytesAhead, /*for a write*/ 1);
  }
}

// Stores one cache line. A plain store of a whole line need not fetch it first; a
// masked store must.
STRUCTOUT_AVX512 inline void store_line(uint32_t* logits, uint16_t disallowed, __m512i neg_inf) {
  if (disallowed == 0xffff) return _mm512_storeu_si512(logits, neg_inf);
  prefetch_ahead(logits, disallowed);
  _mm512_mask_storeu_epi32(logits, disallowed, neg_inf);
}

STRUCTOUT_AVX512 inline void store_line(uint16_t* logits, uint32_t disallowed, __m512i neg_inf) {
  if (disallowed == ~0u) return _mm512_storeu_si512(logits, neg_inf);
  prefetch_ahead(logits, disallowed);
  _mm512_mask_storeu_epi16(logits, disallowed, neg_inf);
}

STRUCTOUT_AVX512 inline void store_word(uint32_t* logits, uint32_t disallowed, __m512i neg_inf) {
  store_line(logits, static_cast<uint16_t>(disallowed), neg_inf);
  store_line(logits + 16, static_cast<uint16_t>(disallowed >> 16), neg_inf);
}

STRUCTOUT_AVX512 inline void store_word(uint16_t* logits, uint32_t disallowed, __m512i neg_inf) {
  store_line(logits, disallowed, neg_inf);
}

// Tests 16 words at a time and visits only those that disallow something.
template <class T>
STRUCTOUT_AVX512 void mask_words_avx512(T* logits, const uint32_t* words, int64_t num_words, T neg_inf) {
  const __m512i fill =
      sizeof(T) == 4 ? _mm512_set1_epi32(static_cast<int>(neg_inf)) : _mm512_set1_epi16(static_cast<short>(neg_inf));
  for (int64_t first = 0; first < num_words; first += 16) {
    const int64_t here = std::min<int64_t>(16, num_words - first);
    const __mmask16 lanes = static_cast<__mmask16>((1u << here) - 1);
    const __m512i block = _mm512_maskz_loadu_epi32(lanes, words + first);
    if (here == 16 && _mm512_test_epi32_mask(block, block) == 0) {
      auto* lines = reinterpret_cast<__m512i*>(logits + first * kBitsPerWord);
      for (size_t j = 0; j < 8 * sizeof(T); ++j) _mm512_storeu_si512(lines + j, fill);
      continue;
    }
    uint32_t touched = _mm512_mask_cmpneq_epi32_mask(lanes, block, _mm512_set1_epi32(-1));
    for (; touched != 0; touched &= touched - 1) {
      const int64_t i = first + __builtin_ctz(touched);
      store_word(logits + i * kBitsPerWord, ~words[i], fill);
    }
  }
}

#endif

template <class T>
MaskWords<T> mask_words() {
#if defined(__x86_64__)
  switch (capability()) {
    case Capability::kAvx512:
      return mask_words_avx512<T>;
    case Capability::kAvx2:
      return mask_words_avx2<T>;
    default:
      break;
  }
#endif
  return mask_words_default<T>;
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

  mask_words<T>()(logits + begin, mask.words + first_word, whole_words, neg_inf);
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
