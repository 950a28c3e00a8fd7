// Which tokens need no logarithm, because they cannot win the draw: host and device, and the same rule in Triton
// (triton_kernels/race.py). No answer depends on it.
#pragma once

#include <cfloat>
#include <cmath>

#include "common/sampling_math.h"

namespace structout {

// What random bits a token of logit z needs to reach the score `bar`.
//
// g(U) <= -ln(u 2^-32) where u = U + 0.5, so z + g >= bar needs log2(u) <= 32 - (bar - z) log2(e). The bits of a
// float, taken for an integer, are 2^23 (127 + e + f) for (1 + f) 2^e, and e + f <= log2((1 + f) 2^e). So with
// reach = 159 - (bar - z) log2(e), which is between 126 and 159 where the outcome is open, U can win only if
// bits(float(U)) <= reach 2^23. All roundings on the way, those of z + g included, are less than 2^-20 |z| + 1e-4.
// Reaches are held in quarters, so that no finite z overflows.
class Bar {
 public:
  Bar() = default;
  STRUCTOUT_HOST_DEVICE explicit Bar(float score) { raise_to(score); }

  STRUCTOUT_HOST_DEVICE void raise_to(float score) {
    if (score <= score_) return;
    score_ = score;
    offset_ = (159.0f + 1e-4f) / 4 - score * kQuarterLog2E;
  }

  STRUCTOUT_HOST_DEVICE float score() const { return score_; }

  // NaN for z = -inf.
  STRUCTOUT_HOST_DEVICE float reach(float z) const { return z * kQuarterLog2E + (fabsf(z) * 0x1p-22f + offset_); }

  // If not, no random bits are enough, for the smallest u is 1/2.
  STRUCTOUT_HOST_DEVICE static bool is_open(float reach) { return reach >= 125.9f / 4; }

  // Where it is open.
  STRUCTOUT_HOST_DEVICE static bool may_win(float reach, uint32_t random_bits) {
    return static_cast<float>(random_bits) <= most_bits(reach);
  }

  // The same as an integer, to compare many random bits with: those above it cannot win.
  STRUCTOUT_HOST_DEVICE static uint32_t most_whole_bits(float reach) {
    const float most = most_bits(reach);
    return most < 0x1p32f ? static_cast<uint32_t>(most) : ~0u;
  }

 private:
  STRUCTOUT_HOST_DEVICE static float most_bits(float reach) {
    // Of a float in [128, 256), the 23 bits of mantissa are 2^16 (reach - 128).
    const float in_range = 4 * fminf(fmaxf(reach, 128.0f / 4), 160.0f / 4);
    return float_of_bits((bits_of_float(in_range) & 0x7fffffu) << 7 | 128u << 23);
  }

  static constexpr float kQuarterLog2E = 0x1.7154760000000p-2f;
  float score_ = -FLT_MAX;
  float offset_ = INFINITY;
};

}  // namespace structout
