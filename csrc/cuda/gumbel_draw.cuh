// Gumbel-max sampling: the token with the highest score z + g(U) is drawn, the lowest
// id on ties. Most tokens are ruled out without a logarithm, and many without random
// bits (see DrawBound). That only saves work: the token drawn is the same without it.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>

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

  // Announces that a token of scaled logit z will be added. The winner's score is at
  // least z plus the smallest noise, -3.13.
  __device__ void announce(float z) { bound_.raise_to(z - 3.2f); }

  // Adds the tokens from `first` on: 4 or 8, and `first` is a multiple of their number,
  // so they share a Philox call. The likeliest of them with the smallest of their coarse
  // bits stands for all; only if it could win is each looked at.
  template <int kTokens>
  __device__ void add_vector(const float (&z)[kTokens], int32_t first) {
    if (is_greedy_) {
      for (int i = 0; i < kTokens; ++i) update_best(z[i], first + i);
      return;
    }
    float highest = z[0];
#pragma unroll
    for (int i = 1; i < kTokens; ++i) highest = fmaxf(highest, z[i]);
    const float log_limit = bound_.log_limit(highest);
    if (!DrawBound::can_win(log_limit)) return;
    const PhiloxWords noise = noise_words(seed_, position_, static_cast<uint32_t>(first) / kTokensPerPhilox);
    const uint32_t max_coarse = DrawBound::max_winning_coarse_bits(log_limit);
    if (smallest_half<kTokens>(noise, first) > max_coarse) return;
    // A loop, because this is rare and copies of the code would not pay.
#pragma unroll 1
    for (int i = 0; i < kTokens; ++i) {
      const uint32_t coarse = half_of(noise, static_cast<uint32_t>(first + i));
      if (coarse <= max_coarse) add_candidate(select(z, i), coarse, first + i);
    }
  }

  __device__ void add(float z, int32_t token) {
    if (is_greedy_) return update_best(z, token);
    if (!DrawBound::can_win(bound_.log_limit(z))) return;
    add_candidate(z, coarse_noise(seed_, position_, static_cast<uint32_t>(token)), token);
  }

  // Raises this thread's bound to the best score of the block so far. `block_best_key`
  // is shared and starts as 0. Every thread of the warp must call this.
  __device__ void share_best_score(unsigned* block_best_key, uint32_t warp_best_key, bool is_first_lane) {
    uint32_t key = warp_best_key;
    if (is_first_lane) {
      const uint32_t old = atomicMax(block_best_key, key);
      key = old > key ? old : key;
    }
    bound_.raise_to(float_of_order_key(__shfl_sync(~0u, key, 0)));
  }

  __device__ uint32_t best_key() const { return order_key(best_); }

  // This thread's best score and token in one integer. The largest of all threads is
  // the winner, because a lower id makes a larger integer.
  __device__ uint64_t packed_best() const { return uint64_t{order_key(best_)} << 32 | ~static_cast<uint32_t>(id_); }
  __device__ static int32_t token_of(uint64_t packed) { return static_cast<int32_t>(~static_cast<uint32_t>(packed)); }
  __device__ static float score_of(uint64_t packed) { return float_of_order_key(static_cast<uint32_t>(packed >> 32)); }

 private:
  // z[i] without an index that is not constant, which would send the array to local
  // memory.
  template <int kTokens>
  __device__ static float select(const float (&z)[kTokens], int i) {
    float chosen = z[0];
#pragma unroll
    for (int k = 1; k < kTokens; ++k) chosen = i == k ? z[k] : chosen;
    return chosen;
  }

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

  __device__ void add_candidate(float z, uint32_t coarse, int32_t token) {
    const float log_limit = bound_.log_limit(z);
    if (!DrawBound::can_win(log_limit) || coarse > DrawBound::max_winning_coarse_bits(log_limit)) return;
    update_best(z + gumbel(coarse << 16 | fine_noise(seed_, position_, static_cast<uint32_t>(token))), token);
  }

  __device__ void update_best(float score, int32_t token) {
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

__device__ __forceinline__ void reset_best_score(RowScratch& scratch) {
  __syncthreads();
  if (threadIdx.x == 0) scratch.best_score_key = 0;
  __syncthreads();
}

__device__ __forceinline__ void share_best_score(GumbelDraw& gumbel_draw, RowScratch& scratch) {
  gumbel_draw.share_best_score(&scratch.best_score_key, max_of_warp(gumbel_draw.best_key()), lane_id() == 0);
}

// Adds every token of the source. z_of(x) must be -inf for tokens that are not kept.
template <FloatFormat kFormat, int kInFlight, class ZOf>
__device__ void add_all(GumbelDraw& gumbel_draw, RowReader<kFormat, kInFlight>& reader, RowScratch& scratch, ZOf z_of) {
  constexpr int kTokens = Vector<kFormat>::kTokens;
  reset_best_score(scratch);
  reader.for_each_vector(
      [&](const float (&x)[kTokens], int32_t first) {
        float z[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) z[i] = z_of(x[i]);
        gumbel_draw.add_vector(z, first);
      },
      [&] { share_best_score(gumbel_draw, scratch); });
}

template <class ZOf>
__device__ void add_all(GumbelDraw& gumbel_draw, TokenList& list, RowScratch& scratch, ZOf z_of) {
  reset_best_score(scratch);
  for (unsigned first = 0; first < list.size; first += blockDim.x) {
    const unsigned i = first + threadIdx.x;
    if (i < list.size) gumbel_draw.add(z_of(list.x[i]), list.ids[i]);
    share_best_score(gumbel_draw, scratch);
  }
}

// Draws from the kept tokens. Returns this thread's packed best.
template <class Source>
__device__ uint64_t draw_kept(Source& source, RowScratch& scratch, const Kept& kept) {
  GumbelDraw gumbel_draw(scratch.row.seed, scratch.row.position, scratch.row.is_greedy());
  gumbel_draw.announce(kept.scale.z(kept.scale.highest));
  add_all(gumbel_draw, source, scratch, [&](float x) { return kept.holds(x) ? kept.scale.z(x) : -INFINITY; });
  return gumbel_draw.packed_best();
}

}  // namespace structout::cuda
