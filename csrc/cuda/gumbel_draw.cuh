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

  // Adds tokens `first` to `first` + 3, where `first` is a multiple of 4: they share a
  // Philox call.
  __device__ void add_four(const float* z, int32_t first) {
    if (is_greedy_) {
      for (int i = 0; i < 4; ++i) update_best(z[i], first + i);
      return;
    }
    float log_limit[4];
    bool needs_bits = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      log_limit[i] = bound_.log_limit(z[i]);
      needs_bits |= DrawBound::can_win(log_limit[i]);
    }
    if (!needs_bits) return;
    const PhiloxWords random = noise_words(seed_, position_, static_cast<uint32_t>(first) >> 2);
    uint32_t candidates = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool can_win = DrawBound::can_win(log_limit[i]) && DrawBound::can_win(log_limit[i], random.w[i]);
      candidates |= static_cast<uint32_t>(can_win) << i;
    }
    // A loop, because candidates are rare and four copies of this code would not pay.
    while (candidates != 0) {
      const int i = __ffs(static_cast<int>(candidates)) - 1;
      candidates &= candidates - 1;
      update_best(select(z, i) + gumbel(select(random.w, i)), first + i);
    }
  }

  __device__ void add(float z, int32_t token) {
    if (is_greedy_) return update_best(z, token);
    const float log_limit = bound_.log_limit(z);
    if (!DrawBound::can_win(log_limit)) return;
    const PhiloxWords random = noise_words(seed_, position_, static_cast<uint32_t>(token) >> 2);
    const uint32_t bits = select(random.w, token & 3);
    if (DrawBound::can_win(log_limit, bits)) update_best(z + gumbel(bits), token);
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
  // four[i] without an index that is not constant, which would send the array to local
  // memory.
  template <class T>
  __device__ static T select(const T* four, int i) {
    const T low = i & 1 ? four[1] : four[0], high = i & 1 ? four[3] : four[2];
    return i & 2 ? high : low;
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
#pragma unroll
        for (int i = 0; i < kTokens; i += 4) gumbel_draw.add_four(z + i, first + i);
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
