// Gumbel-max sampling: the token with the highest score z + g(U) is drawn, the lowest
// id on ties. Most tokens are ruled out without a logarithm, and many without random
// bits (see DrawBound). This only saves work: the token drawn is the same without it.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/draw_bound.h"
#include "cuda/compat.h"
#include "cuda/row_reader.cuh"
#include "cuda/row_state.cuh"

namespace structout::cuda {

// One thread's part of the draw. Tokens with z = -inf or NaN are never drawn.
class GumbelDraw {
 public:
  __device__ GumbelDraw(int64_t seed, int64_t position, bool is_greedy)
      : seed_(seed), position_(position), is_greedy_(is_greedy) {}

  // A score that a token of the warp reaches: that of each thread's likeliest token in
  // its vector, with the smallest noise that its coarse bits allow. Every thread of the
  // warp must call this.
  template <class V, class ZOf>
  __device__ uint32_t reached_key(const V& vector, int32_t first, ZOf z_of) const {
    float highest = -INFINITY;
    int likeliest = 0;
#pragma unroll
    for (int i = 0; i < V::kTokens; ++i) {
      const float z = z_of(vector.at(i));
      if (!(z > highest)) continue;
      highest = z;
      likeliest = i;
    }
    if (!is_greedy_) {
      const uint32_t coarse = coarse_noise(seed_, position_, static_cast<uint32_t>(first + likeliest));
      highest += gumbel(coarse << 16 | 0xffffu);
    }
    return max_of_warp(order_key(highest));
  }

  // The winner's score is at least this.
  __device__ void raise_bound(uint32_t reached_key) { bound_.raise_to(float_of_order_key(reached_key)); }

  // True if one of the tokens from `first` on could win, of which z is the highest. They
  // are 4 or 8, and `first` is a multiple of their number, so they share a Philox call.
  template <int kTokens>
  __device__ bool may_win(float z, int32_t first) const {
    if (is_greedy_) return z >= bound_.score();
    return may_win(z, smallest_half<kTokens>(noise_words(seed_, position_, group_of(first)), first));
  }

  // Adds the tokens of a vector. Every thread of the warp must call this.
  template <class V, class ZOf>
  __device__ void add_vector(const V& vector, int32_t first, ZOf z_of) {
    const PhiloxWords noise = noise_words(seed_, position_, group_of(first));
    if (!__any_sync(kWholeWarp, may_win(z_of(vector.highest()), smallest_half<V::kTokens>(noise, first)))) return;
    // A loop, because this is rare and copies of the code would not pay.
#pragma unroll 1
    for (int i = 0; i < V::kTokens; ++i) {
      const float z = z_of(vector.select(i));
      const uint32_t coarse = half_of(noise, static_cast<uint32_t>(first + i));
      const bool is_candidate = may_win(z, coarse);
      if (!__any_sync(kWholeWarp, is_candidate)) continue;
      if (is_candidate) add_candidate(z, coarse, first + i);
      raise_bound(max_of_warp(best_key()));
    }
  }

  __device__ void add(float z, int32_t token) {
    const uint32_t coarse = is_greedy_ ? 0 : coarse_noise(seed_, position_, static_cast<uint32_t>(token));
    if (may_win(z, coarse)) add_candidate(z, coarse, token);
  }

  __device__ uint32_t best_key() const { return order_key(best_); }

  // This thread's best score and token in one integer. The largest of all threads is
  // the winner, because a lower id makes a larger integer.
  __device__ uint64_t packed_best() const { return uint64_t{order_key(best_)} << 32 | ~static_cast<uint32_t>(id_); }
  __device__ static int32_t token_of(uint64_t packed) { return static_cast<int32_t>(~static_cast<uint32_t>(packed)); }
  __device__ static float score_of(uint64_t packed) { return float_of_order_key(static_cast<uint32_t>(packed >> 32)); }

 private:
  __device__ static uint32_t group_of(int32_t token) { return static_cast<uint32_t>(token) / kTokensPerPhilox; }

  // The smallest coarse bits of the tokens from `first` on.
  template <int kTokens>
  __device__ static uint32_t smallest_half(const PhiloxWords& noise, int32_t first) {
    uint32_t halves;
    if constexpr (kTokens == kTokensPerPhilox) {
      halves = min_of_halves(min_of_halves(noise.w[0], noise.w[1]), min_of_halves(noise.w[2], noise.w[3]));
    } else {
      halves = first & 4 ? min_of_halves(noise.w[2], noise.w[3]) : min_of_halves(noise.w[0], noise.w[1]);
    }
    const uint32_t low = halves & 0xffffu, high = halves >> 16;
    return low < high ? low : high;
  }

  __device__ bool may_win(float z, uint32_t coarse) const {
    return is_greedy_ ? z >= bound_.score() : DrawBound::may_win(bound_.log_limit(z), coarse);
  }

  __device__ void add_candidate(float z, uint32_t coarse, int32_t token) {
    float score = z;
    if (!is_greedy_) score += gumbel(coarse << 16 | fine_noise(seed_, position_, static_cast<uint32_t>(token)));
    if (!(score > best_ || (score == best_ && token < id_))) return;
    best_ = score;
    id_ = token;
    bound_.raise_to(score);
  }

  DrawBound bound_;
  float best_ = -FLT_MAX;
  int32_t id_ = INT_MAX;
  int64_t seed_, position_;
  bool is_greedy_;
};

// Adds every token of a row that has not been read before, and surveys it. z_of(x) must
// never fall with x. All threads of the block share a bound.
template <FloatFormat kFormat, class ZOf>
__device__ __forceinline__ auto add_all(GumbelDraw& gumbel_draw, RowReader<kFormat>& reader, RowScratch& scratch,
                                        ZOf z_of) {
  using V = Vector<kFormat>;
  typename RowReader<kFormat>::Survey survey;
  unsigned open = 0;  // the vectors of the group that could win, the same in the whole warp
  reader.for_each_pair(
      [&](const V& vector, int32_t first) {
        const uint32_t reached = gumbel_draw.reached_key(vector, first, z_of);
        if (lane_id() == 0) atomicMax(&scratch.best_score_key, reached);
        __syncthreads();
      },
      [&](const V(&pair)[2], int32_t first, int i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t highest = pair[k].highest_word();
          survey.add_word(highest);
          const float z = z_of(V::highest_of_word(highest));
          const bool may_win = gumbel_draw.template may_win<V::kTokens>(z, first + k * reader.step());
          if (__any_sync(kWholeWarp, may_win)) open |= 1u << (2 * i + k);
        }
      },
      [&](int32_t first) {
        gumbel_draw.raise_bound(load_relaxed(&scratch.best_score_key));
        if (open == 0) return;
        for (; open != 0; open &= open - 1) {
          const int32_t here = first + (__ffs(static_cast<int>(open)) - 1) * reader.step();
          gumbel_draw.add_vector(reader.vector_at(here), here, z_of);
        }
        const uint32_t best = max_of_warp(gumbel_draw.best_key());
        if (lane_id() == 0) atomicMax(&scratch.best_score_key, best);
      });
  return survey;
}

template <class ZOf>
__device__ __forceinline__ auto add_all(GumbelDraw& gumbel_draw, const TokenList& list, RowScratch&, ZOf z_of) {
  TokenList::Survey survey;
  list.for_each([&](float x, int32_t token) {
    survey.add(x);
    gumbel_draw.add(z_of(x), token);
  });
  return survey;
}

// Draws from the kept tokens. Returns this thread's packed best.
template <class Source>
__device__ __forceinline__ uint64_t draw_kept(const Source& source, const RowParams& row, const Kept& kept) {
  GumbelDraw gumbel_draw(row.seed, row.position, row.is_greedy());
  const auto z_of = [&](float x) { return kept.holds(x) ? kept.scale.z(x) : -INFINITY; };
  if constexpr (std::is_same_v<Source, TokenList>) {
    source.for_each([&](float x, int32_t token) { gumbel_draw.add(z_of(x), token); });
  } else {
    using V = typename Source::V;
    source.for_each_vector([&](const V& vector, int32_t first) {
      const bool may_win = gumbel_draw.template may_win<V::kTokens>(z_of(vector.highest()), first);
      if (__any_sync(kWholeWarp, may_win)) gumbel_draw.add_vector(vector, first, z_of);
    });
  }
  return gumbel_draw.packed_best();
}

}  // namespace structout::cuda
