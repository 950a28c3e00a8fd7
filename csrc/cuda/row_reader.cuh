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

// 16 bytes of logits.
template <FloatFormat kFormat>
struct Vector {
  static constexpr int kBytesPerToken = kFormat == FloatFormat::kFloat32 ? 4 : 2;
  static constexpr int kTokens = 16 / kBytesPerToken;
  using Element = std::conditional_t<kBytesPerToken == 4, uint32_t, uint16_t>;

  uint32_t words[4];

  __device__ static float widen(uint32_t element) {
    if (kFormat == FloatFormat::kFloat32) return float_of_bits(element);
    if (kFormat == FloatFormat::kBFloat16) return float_of_bits(element << 16);
    return float_of_half(static_cast<uint16_t>(element));
  }

  __device__ float at(int i) const {
    if (kBytesPerToken == 4) return float_of_bits(words[i]);
    const uint32_t pair = words[i / 2];
    return widen(i % 2 == 0 ? pair & 0xffffu : pair >> 16);
  }

  __device__ void set(int i, uint32_t element) {
    if (kBytesPerToken == 4) {
      words[i] = element;
    } else {
      words[i / 2] = i % 2 == 0 ? element : words[i / 2] | element << 16;
    }
  }
};

// Reads one block's share of a row. If the share fits in shared memory, the first pass
// stores it there and later passes read the copy. Each thread reads only what it stored
// itself, so no barrier is needed. kInFlight: the number of 16-byte loads that a thread
// has in flight.
template <FloatFormat kFormat, int kInFlight>
class RowReader {
 public:
  using V = Vector<kFormat>;
  using Element = typename V::Element;

  __device__ RowReader(const MaskedLogits& params, int64_t row, const MaskRow& mask)
      : logits_(params.token_0<Element>(row)),
        mask_words_(mask.words),
        num_mask_words_(static_cast<int32_t>(mask.words_within(params.vocab_end))),
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
    has_store_ = share <= store_vectors;
  }

  __device__ float logit(int32_t token) const { return V::widen(__ldg(logits_ + token)); }

  // Calls visit(x, first) for each vector of tokens, with -inf for disallowed tokens.
  // Vectors without an allowed token are skipped and not loaded. Also calls
  // after_some() every few vectors, equally often in all threads of the block.
  //
  // The loop is not unrolled, because a visit can be hundreds of instructions long. A
  // queue of registers keeps the loads in flight instead.
  template <class Visit, class AfterSome>
  __device__ void for_each_vector(Visit visit, AfterSome after_some) {
    const int32_t step = static_cast<int32_t>(blockDim.x) * V::kTokens;
    int32_t first = begin_ + static_cast<int32_t>(threadIdx.x) * V::kTokens;
    V queue[kInFlight];
    uint32_t allowed[kInFlight + 1];  // loaded one step before the load that depends on it
#pragma unroll
    for (int i = 0; i <= kInFlight; ++i) allowed[i] = allowed_tokens(first + i * step);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) queue[i] = load(first + i * step, allowed[i]);
    const int32_t steps = (end_ - begin_ + step - 1) / step;
#pragma unroll 1
    for (int32_t n = 0; n < steps; ++n, first += step) {
      const V vector = queue[0];
      const uint32_t bits = allowed[0];
#pragma unroll
      for (int i = 0; i + 1 < kInFlight; ++i) queue[i] = queue[i + 1];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) allowed[i] = allowed[i + 1];
      queue[kInFlight - 1] = load(first + kInFlight * step, allowed[kInFlight - 1]);
      allowed[kInFlight] = allowed_tokens(first + (kInFlight + 1) * step);
      if (bits != 0) {
        if (has_store_ && !is_stored_) {
          store_[(first - begin_) / V::kTokens] =
              make_uint4(vector.words[0], vector.words[1], vector.words[2], vector.words[3]);
        }
        float x[V::kTokens];
#pragma unroll
        for (int k = 0; k < V::kTokens; ++k) x[k] = bits >> k & 1u ? vector.at(k) : -INFINITY;
        visit(x, first);
      }
      if (n % 4 == 0) after_some();
    }
    is_stored_ = has_store_;
  }

  // Calls visit(x, token) for every allowed token, and for some disallowed ones with x
  // = -inf.
  template <class Visit>
  __device__ void for_each(Visit visit) {
    for_each_vector(
        [&](const float (&x)[V::kTokens], int32_t first) {
#pragma unroll
          for (int k = 0; k < V::kTokens; ++k) visit(x[k], first + k);
        },
        [] {});
  }

 private:
  __device__ static int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }

  // One bit for each token of the vector that begins at `first`.
  __device__ uint32_t allowed_tokens(int32_t first) const {
    if (first >= end_) return 0;
    const int32_t left = vocab_end_ - first;
    uint32_t existing = (1u << (left < V::kTokens ? left : V::kTokens)) - 1;
    if (first < vocab_begin_) existing &= ~0u << (vocab_begin_ - first);
    if (is_free_) return existing;
    const int32_t word = first / static_cast<int32_t>(kBitsPerWord);
    if (word >= num_mask_words_) return 0;
    return __ldg(mask_words_ + word) >> (first % static_cast<int32_t>(kBitsPerWord)) & existing;
  }

  __device__ V load(int32_t first, uint32_t allowed) const {
    V vector{};
    if (allowed == 0) return vector;
    if (is_stored_ || (is_aligned_ && first >= vocab_begin_ && first + V::kTokens <= vocab_end_)) {
      const uint4 words =
          is_stored_ ? store_[(first - begin_) / V::kTokens] : __ldg(reinterpret_cast<const uint4*>(logits_ + first));
      vector = {words.x, words.y, words.z, words.w};
    } else {
#pragma unroll
      for (int k = 0; k < V::kTokens; ++k) vector.set(k, allowed >> k & 1u ? __ldg(logits_ + first + k) : 0);
    }
    return vector;
  }

  const Element* logits_;  // where token 0 is or would be
  const uint32_t* mask_words_;
  int32_t num_mask_words_, vocab_begin_, vocab_end_;
  bool is_free_, is_aligned_;
  int32_t begin_ = 0, end_ = 0;
  uint4* store_ = nullptr;
  bool has_store_ = false, is_stored_ = false;
};

}  // namespace structout::cuda
