// The draw: the token with the highest z + g(U) wins, the lowest id on ties. Most tokens are told apart from winners
// without a logarithm, and many without a random number (see Bar); no answer depends on it.
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

// One thread's part of the draw. A token that takes no part has z = -inf (or NaN).
class Race {
 public:
  __device__ Race(int64_t seed, int64_t position, bool is_greedy)
      : seed_(seed), position_(position), is_greedy_(is_greedy) {}

  // A token of logit z will enter: the winner's score is no less than with the worst noise, -3.13.
  __device__ void expect(float z) { bar_.raise_to(z - 3.2f); }

  // Tokens `first` to `first` + 3, where first is a multiple of 4: they share a Philox call.
  __device__ void enter_four(const float* z, int32_t first) {
    if (is_greedy_) {
      for (int i = 0; i < 4; ++i) offer(z[i], first + i);
      return;
    }
    float reach[4];
    bool is_open = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      reach[i] = bar_.reach(z[i]);
      is_open |= Bar::is_open(reach[i]);
    }
    if (!is_open) return;
    const PhiloxWords random = noise_words(seed_, position_, static_cast<uint32_t>(first) >> 2);
    uint32_t candidates = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool may_win = Bar::is_open(reach[i]) && Bar::may_win(reach[i], random.w[i]);
      candidates |= static_cast<uint32_t>(may_win) << i;
    }
    // Rare, so one copy of the code has to do.
    while (candidates != 0) {
      const int i = __ffs(static_cast<int>(candidates)) - 1;
      candidates &= candidates - 1;
      offer(pick(z, i) + gumbel(pick(random.w, i)), first + i);
    }
  }

  __device__ void enter(float z, int32_t token) {
    if (is_greedy_) return offer(z, token);
    const float reach = bar_.reach(z);
    if (!Bar::is_open(reach)) return;
    const PhiloxWords random = noise_words(seed_, position_, static_cast<uint32_t>(token) >> 2);
    const uint32_t bits = pick(random.w, token & 3);
    if (Bar::may_win(reach, bits)) offer(z + gumbel(bits), token);
  }

  // Lets the threads of a block know what they have to beat. `highest` is shared, and 0 when the race begins. Every
  // thread of the warp must call it.
  __device__ void share_bar(unsigned* highest, uint32_t highest_of_warp, bool is_speaker) {
    uint32_t key = highest_of_warp;
    if (is_speaker) {
      const uint32_t old = atomicMax(highest, key);
      key = old > key ? old : key;
    }
    bar_.raise_to(float_of_order_key(__shfl_sync(~0u, key, 0)));
  }

  __device__ uint32_t best_key() const { return order_key(best_); }

  // The greatest outcome of all threads' wins.
  __device__ uint64_t outcome() const { return uint64_t{order_key(best_)} << 32 | ~static_cast<uint32_t>(id_); }
  __device__ static int32_t winner_of(uint64_t outcome) {
    return static_cast<int32_t>(~static_cast<uint32_t>(outcome));
  }
  __device__ static float score_of(uint64_t outcome) {
    return float_of_order_key(static_cast<uint32_t>(outcome >> 32));
  }

 private:
  // An index that is not a constant would send the array to memory.
  template <class T>
  __device__ static T pick(const T* four, int i) {
    const T low = i & 1 ? four[1] : four[0], high = i & 1 ? four[3] : four[2];
    return i & 2 ? high : low;
  }

  __device__ void offer(float score, int32_t token) {
    if (!(score > best_ || (score == best_ && token < id_))) return;
    best_ = score;
    id_ = token;
    bar_.raise_to(score);
  }

  Bar bar_;
  float best_ = -FLT_MAX;
  int32_t id_ = INT_MAX;
  int64_t seed_, position_;
  bool is_greedy_;
};

__device__ __forceinline__ void begin_race(RowScratch& scratch) {
  __syncthreads();
  if (threadIdx.x == 0) scratch.highest_score = 0;
  __syncthreads();
}

__device__ __forceinline__ void share_bar(Race& race, RowScratch& scratch) {
  race.share_bar(&scratch.highest_score, max_of_warp(race.best_key()), lane_id() == 0);
}

// z_of(x): -inf for what takes no part.
template <FloatFormat kFormat, int kInFlight, class ZOf>
__device__ void run_race(Race& race, RowReader<kFormat, kInFlight>& reader, RowScratch& scratch, ZOf z_of) {
  constexpr int kTokens = Vector<kFormat>::kTokens;
  begin_race(scratch);
  reader.for_each_vector(
      [&](const float (&x)[kTokens], int32_t first) {
        float z[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) z[i] = z_of(x[i]);
#pragma unroll
        for (int i = 0; i < kTokens; i += 4) race.enter_four(z + i, first + i);
      },
      [&] { share_bar(race, scratch); });
}

template <class ZOf>
__device__ void run_race(Race& race, TokenList& list, RowScratch& scratch, ZOf z_of) {
  begin_race(scratch);
  for (unsigned first = 0; first < list.size; first += blockDim.x) {
    const unsigned i = first + threadIdx.x;
    if (i < list.size) race.enter(z_of(list.x[i]), list.ids[i]);
    share_bar(race, scratch);
  }
}

// Returns the outcome in this thread.
template <class Source>
__device__ uint64_t draw_kept(Source& source, RowScratch& scratch, const Kept& kept) {
  Race race(scratch.row.seed, scratch.row.position, scratch.row.is_greedy());
  race.expect(kept.scale.z(kept.scale.highest));
  run_race(race, source, scratch, [&](float x) { return kept.holds(x) ? kept.scale.z(x) : -INFINITY; });
  return race.outcome();
}

}  // namespace structout::cuda
