// Reads the allowed logits of one row, 16 bytes per thread at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/masked_logits.h"
#include "common/sampling_math.h"
#include "cuda/compat.h"
#include "cuda/row_team.cuh"

namespace structout::cuda {

__device__ __forceinline__ float float_of_half(uint16_t half) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  const float magnitude = float_of_bits(static_cast<uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
  const uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  return float_of_bits(bits_of_float(magnitude) | special | static_cast<uint32_t>(half & 0x8000) << 16);
#endif
}

// The larger of two floats. NaN if either is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
#ifdef __CUDACC__
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a != a || a > b ? a : b;
#endif
}

// 16 bytes of logits.
template <FloatFormat kFormat>
struct Vector {
  static constexpr int kBytesPerToken = kFormat == FloatFormat::kFloat32 ? 4 : 2;
  static constexpr int kTokens = 16 / kBytesPerToken;
  static constexpr uint32_t kAllTokens = (1u << kTokens) - 1;
  // One word of -inf.
  static constexpr uint32_t kNegInf = kFormat == FloatFormat::kFloat32    ? 0xff800000u
                                      : kFormat == FloatFormat::kBFloat16 ? 0xff80ff80u
                                                                          : 0xfc00fc00u;
  using Element = std::conditional_t<kBytesPerToken == 4, uint32_t, uint16_t>;

  uint32_t words[4];

  __device__ static float widen(uint32_t element) {
    if (kFormat == FloatFormat::kFloat32) return float_of_bits(element);
    if (kFormat == FloatFormat::kBFloat16) return float_of_bits(element << 16);
    return float_of_half(static_cast<uint16_t>(element));
  }

  __device__ float at(int i) const {
    if (kBytesPerToken == 4) return float_of_bits(words[i]);
    return half_of_word(words[i / 2], i % 2);
  }

  // at(i) without an index that is not constant, which would send the words to local
  // memory.
  __device__ float select(int i) const {
    const int word = kBytesPerToken == 4 ? i : i / 2;
    const uint32_t low = word & 1 ? words[1] : words[0], high = word & 1 ? words[3] : words[2];
    const uint32_t chosen = word & 2 ? high : low;
    return kBytesPerToken == 4 ? float_of_bits(chosen) : half_of_word(chosen, i % 2);
  }

  __device__ void set(int i, uint32_t element) {
    if (kBytesPerToken == 4) {
      words[i] = element;
    } else {
      words[i / 2] = i % 2 == 0 ? element : words[i / 2] | element << 16;
    }
  }

  // Makes every token -inf whose bit is not set.
  __device__ void keep_only(uint32_t tokens) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t kept = tokens >> i & 1u ? ~0u : 0;
      if (kBytesPerToken == 2) kept = (tokens >> 2 * i & 1u ? 0xffffu : 0) | (tokens >> 2 * i & 2u ? 0xffff0000u : 0);
      words[i] = (words[i] & kept) | (kNegInf & ~kept);
    }
  }

  // The highest logits as a word: a float32, or the highest of the even and of the odd
  // tokens. NaN where one of them is.
  __device__ uint32_t highest_word() const {
    return max_of_words(max_of_words(words[0], words[1]), max_of_words(words[2], words[3]));
  }
  __device__ static float highest_of_word(uint32_t word) {
    if (kBytesPerToken == 4) return float_of_bits(word);
    return max_or_nan(half_of_word(word, 0), half_of_word(word, 1));
  }
  __device__ float highest() const { return highest_of_word(highest_word()); }

  __device__ static uint32_t max_of_words(uint32_t a, uint32_t b) {
    if (kBytesPerToken == 4) return bits_of_float(max_or_nan(float_of_bits(a), float_of_bits(b)));
#ifdef __CUDACC__
    uint32_t larger;
    if (kFormat == FloatFormat::kBFloat16) {
      asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    } else {
      asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    }
    return larger;
#else
    const auto larger = [&](int i) {
      const float x = half_of_word(a, i), y = half_of_word(b, i);
      return (x != x || x > y ? a : b) >> 16 * i & 0xffffu;
    };
    return larger(1) << 16 | larger(0);
#endif
  }

 private:
  __device__ static float half_of_word(uint32_t word, int i) {
    if (kFormat == FloatFormat::kBFloat16) return float_of_bits(i == 0 ? word << 16 : word & 0xffff0000u);
    return widen(i == 0 ? word & 0xffffu : word >> 16);
  }
};

// Reads one block's share of a row. If the share fits in shared memory, the first pass
// stores it there and later passes read the copy. Each thread reads only what it stored
// itself, so no barrier is needed.
template <FloatFormat kFormat>
class RowReader {
 public:
  using V = Vector<kFormat>;
  using Element = typename V::Element;
  // The last bits of an order key that tell nothing: those of a widened 16-bit logit are 0.
  static constexpr int kKeyZeroBits = kFormat == FloatFormat::kFloat32 ? 0 : kFormat == FloatFormat::kFloat16 ? 13 : 16;

  __device__ RowReader(const MaskedLogits& params, int64_t row, const MaskRow& mask)
      : logits_(params.token_0<Element>(row)),
        mask_bytes_(reinterpret_cast<const uint8_t*>(mask.words)),
        num_mask_bytes_(static_cast<uint32_t>(mask.words_within(params.vocab_end)) * 4),
        vocab_begin_(static_cast<int32_t>(params.vocab_begin)),
        vocab_end_(static_cast<int32_t>(params.vocab_end)),
        is_free_(mask.is_free),
        is_aligned_(is_16_byte_aligned(logits_)) {}

  // Call this before the first pass. `store` has room for `store_vectors` vectors.
  template <class Team>
  __device__ void take_share(const Team& team, uint4* store, int64_t store_vectors) {
    const int32_t first = vocab_begin_ / V::kTokens;
    const int32_t vectors = (vocab_end_ + V::kTokens - 1) / V::kTokens - first;
    const int32_t share = (vectors + team.num_blocks() - 1) / team.num_blocks();
    begin_ = min_of((first + share * team.block_rank()) * V::kTokens, vocab_end_);
    end_ = min_of(begin_ + share * V::kTokens, vocab_end_);
    store_ = store;
    store_end_ = share <= store_vectors ? end_ : begin_;
    const int32_t last = end_ - kGroup * step();  // of a group whose vectors are all whole
    num_whole_ = static_cast<uint32_t>(max_of(0, last - vocab_begin_ + 1));
  }

  __device__ float logit(int32_t token) const { return V::widen(__ldg(logits_ + token)); }

  // The distance between two vectors of one thread, in tokens.
  __device__ static int32_t step() { return static_cast<int32_t>(blockDim.x) * V::kTokens; }

  // The vector that begins at token `first`, one of this thread's, with -inf for
  // disallowed tokens and after the end. All threads of a warp must call this.
  __device__ V vector_at(int32_t first) const {
    V vector{{V::kNegInf, V::kNegInf, V::kNegInf, V::kNegInf}};
    if (is_stored_) {
      if (first < end_) vector = of_uint4(store_[(first - begin_) / V::kTokens]);
      return vector;
    }
    const uint32_t allowed = allowed_tokens(first);
    load_part(vector, first, allowed);
    if (!__all_sync(kWholeWarp, allowed == V::kAllTokens)) vector.keep_only(allowed);
    return vector;
  }

  // The first pass. Takes this thread's vectors through three calls, which all threads
  // of a warp make together: start(vector, first) with the first of them; visit(pair,
  // first, i) with two of them, step() tokens apart, where i = 0, 1 is their place in a
  // group; and after_group(first) with the first token of a group. Disallowed tokens are
  // -inf. Vectors without an allowed token are not loaded.
  template <class Start, class Visit, class AfterGroup>
  __device__ __forceinline__ void for_each_pair(Start start, Visit visit, AfterGroup after_group) {
    int32_t first = begin_ + static_cast<int32_t>(threadIdx.x) * V::kTokens;
    // A group of loads is in flight at a time. Masks are read before the loads that
    // depend on them.
    V queue[kGroup / 2][2] = {};
    uint32_t allowed = allowed_of_group(first);
#pragma unroll
    for (int i = 0; i < kGroup / 2; ++i) load_pair(queue[i], first, i, allowed);
    uint32_t next_allowed = allowed_of_group(first + kGroup * step());
    V first_vector = queue[0][0];
    first_vector.keep_only(allowed);
    start(first_vector, first);
#pragma unroll 1
    for (int32_t begin = begin_; begin < end_; begin += kGroup * step()) {
      const bool is_whole = __all_sync(kWholeWarp, allowed == kAllOfGroup);
      if (!is_whole) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) queue[i / 2][i % 2].keep_only(allowed >> 8 * i);
      }
      const int32_t next = first + kGroup * step();
#pragma unroll
      for (int i = 0; i < kGroup / 2; ++i) {
        store(queue[i][0], first + 2 * i * step());
        store(queue[i][1], first + (2 * i + 1) * step());
        const bool is_empty = !is_whole && !__any_sync(kWholeWarp, (allowed >> 16 * i & 0xffffu) != 0);
        if (!is_empty) visit(queue[i], first + 2 * i * step(), i);
        load_pair(queue[i], next, i, next_allowed);
      }
      after_group(first);
      first = next;
      allowed = next_allowed;
      next_allowed = allowed_of_group(next + kGroup * step());
    }
    is_stored_ = store_end_ > begin_;
  }

  // Later passes, and those that are less urgent than short. Calls visit(vector, first)
  // for each of this thread's vectors; all threads of a warp do so together.
  template <class Visit>
  __device__ __forceinline__ void for_each_vector(Visit visit) const {
    int32_t first = begin_ + static_cast<int32_t>(threadIdx.x) * V::kTokens;
    V next = vector_at(first);
#pragma unroll 1
    for (int32_t begin = begin_; begin < end_; begin += step()) {
      const V vector = next;
      next = vector_at(first + step());
      visit(vector, first);
      first += step();
    }
  }

  // Calls visit(x, token) for every allowed token, and for some disallowed ones with x
  // = -inf.
  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    for_each_from(0, visit);
  }

  // Like the one above, but may leave out tokens whose order key is below `lowest_key`. No logit
  // may be NaN.
  template <class Visit>
  __device__ __forceinline__ void for_each_from(uint32_t lowest_key, Visit visit) const {
    for_each_vector([&](const V& vector, int32_t first) {
      if (lowest_key != 0 && !__any_sync(kWholeWarp, order_key(vector.highest()) >= lowest_key)) return;
#pragma unroll
      for (int k = 0; k < V::kTokens; ++k) visit(vector.at(k), first + k);
    });
  }

  // The highest allowed logit, NaN if one of them is.
  class Survey {
   public:
    __device__ void add_word(uint32_t highest_word) { word_ = V::max_of_words(word_, highest_word); }
    __device__ float highest() const { return V::highest_of_word(word_); }

   private:
    uint32_t word_ = V::kNegInf;
  };

  // The first pass, if it does no more than this: surveys this thread's tokens.
  __device__ Survey survey() {
    Survey survey;
    for_each_pair([](const V&, int32_t) {},
                  [&](const V(&pair)[2], int32_t, int) {
                    survey.add_word(V::max_of_words(pair[0].highest_word(), pair[1].highest_word()));
                  },
                  [](int32_t) {});
    return survey;
  }

 private:
  static constexpr int kGroup = 4;  // loads of 16 bytes that a thread has in flight: 32 KB per block
  static constexpr uint32_t kAllOfGroup = V::kAllTokens * 0x01010101u;

  __device__ static int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }
  __device__ static int32_t max_of(int32_t a, int32_t b) { return a < b ? b : a; }
  __device__ static V of_uint4(const uint4& words) { return {{words.x, words.y, words.z, words.w}}; }

  __device__ void store(const V& vector, int32_t first) const {
    if (first >= store_end_) return;
    const uint32_t (&words)[4] = vector.words;
    store_[(first - begin_) / V::kTokens] = make_uint4(words[0], words[1], words[2], words[3]);
  }

  // True if all tokens of the group that begins at `first` exist.
  __device__ bool is_whole_group(int32_t first) const {
    return static_cast<uint32_t>(first - vocab_begin_) < num_whole_;
  }

  // One bit for each token of the vector that begins at `first`.
  __device__ uint32_t allowed_tokens(int32_t first) const {
    if (first >= end_) return 0;
    uint32_t existing = V::kAllTokens;
    if (first + V::kTokens > vocab_end_) existing = (1u << (vocab_end_ - first)) - 1;
    if (first < vocab_begin_) existing &= ~0u << (vocab_begin_ - first);
    return is_free_ ? existing : mask_of(first) & existing;
  }
  __device__ uint32_t mask_of(int32_t first) const {
    const auto token = static_cast<uint32_t>(first);
    return token / 8 < num_mask_bytes_ ? static_cast<uint32_t>(__ldg(mask_bytes_ + token / 8)) >> token % 8 : 0;
  }

  // The allowed tokens of a group, in a byte for each vector.
  __device__ uint32_t allowed_of_group(int32_t first) const {
    uint32_t allowed = 0;
    if (is_whole_group(first)) {
      if (is_free_) return kAllOfGroup;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) allowed |= mask_of(first + i * step()) << 8 * i;
      return allowed & kAllOfGroup;
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) allowed |= allowed_tokens(first + i * step()) << 8 * i;
    return allowed;
  }

  // Loads pair i of the group that begins at `first`, as far as its tokens are allowed.
  __device__ void load_pair(V (&pair)[2], int32_t first, int i, uint32_t allowed) const {
    const bool is_whole = is_whole_group(first) && is_aligned_;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t allowed_of_vector = allowed >> 8 * (2 * i + k) & V::kAllTokens;
      const int32_t here = first + (2 * i + k) * step();
      if (!is_whole) {
        load_part(pair[k], here, allowed_of_vector);
      } else if (allowed_of_vector != 0) {
        pair[k] = of_uint4(__ldg(reinterpret_cast<const uint4*>(logits_ + here)));
      }
    }
  }

  __device__ void load_part(V& vector, int32_t first, uint32_t allowed) const {
    if (allowed == 0) return;
    if (is_aligned_ && first >= vocab_begin_ && first + V::kTokens <= vocab_end_) {
      vector = of_uint4(__ldg(reinterpret_cast<const uint4*>(logits_ + first)));
      return;
    }
#pragma unroll
    for (int k = 0; k < V::kTokens; ++k) vector.set(k, allowed >> k & 1u ? __ldg(logits_ + first + k) : 0);
  }

  const Element* logits_;  // where token 0 is or would be
  const uint8_t* mask_bytes_;
  uint32_t num_mask_bytes_;
  int32_t vocab_begin_, vocab_end_;
  bool is_free_, is_aligned_, is_stored_ = false;
  int32_t begin_ = 0, end_ = 0;
  uint32_t num_whole_ = 0;  // a whole group begins at vocab_begin_ plus less than this
  uint4* store_ = nullptr;
  int32_t store_end_ = 0;  // begin_ if the share does not fit
};

}  // namespace structout::cuda
