// The draw: the token with the highest z + g(U) wins, the lowest id on ties. Most tokens are told apart from winners
// without a logarithm, and many without a random number; no answer depends on it.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>

#include "../sampling_math.h"
#include "compat.h"

namespace structout::cuda {

__device__ __forceinline__ float float_of_order_key(uint32_t key) {
  return float_of_bits(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// What random bits a token of logit z needs to reach the score `bar`.
//
// g(U) <= -ln(u 2^-32) where u = U + 0.5, so z + g >= bar needs log2(u) <= 32 - (bar - z) log2(e). The bits of a
// float, taken for an integer, are 2^23 (127 + e + f) for (1 + f) 2^e, and e + f <= log2((1 + f) 2^e). So with
// reach = 159 - (bar - z) log2(e), which is between 126 and 159 where the outcome is open, U can win only if
// bits(float(U)) <= reach 2^23. All roundings on the way, those of z + g included, are less than 2^-20 |z| + 1e-4.
// Reaches are held in quarters, so that no finite z overflows.
class Bar {
 public:
  __device__ void raise_to(float score) {
    if (score <= score_) return;
    score_ = score;
    offset_ = (159.0f + 1e-4f) / 4 - score * kQuarterLog2E;
  }

  __device__ float score() const { return score_; }

  // NaN for z = -inf.
  __device__ float reach(float z) const { return z * kQuarterLog2E + (fabsf(z) * 0x1p-22f + offset_); }

  // If not, no random bits are enough, for the smallest u is 1/2.
  __device__ static bool is_open(float reach) { return reach >= 125.9f / 4; }

  __device__ static bool may_win(float reach, uint32_t random_bits) {
    // Of a float in [128, 256), the 23 bits of mantissa are 2^16 (reach - 128).
    const float in_range = 4 * fminf(fmaxf(reach, 128.0f / 4), 160.0f / 4);
    const float highest = float_of_bits((bits_of_float(in_range) & 0x7fffffu) << 7 | 128u << 23);
    return static_cast<float>(random_bits) <= highest;
  }

 private:
  static constexpr float kQuarterLog2E = 0x1.7154760000000p-2f;
  float score_ = -FLT_MAX;
  float offset_ = INFINITY;
};

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

}  // namespace structout::cuda
