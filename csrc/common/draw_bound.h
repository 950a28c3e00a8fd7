// Rules out tokens that cannot win a Gumbel-max draw, without computing their noise.
// For host and device; triton_kernels/gumbel_draw.py has the same rule. It only saves
// work: the token drawn is the same without it.
#pragma once

#include <cfloat>
#include <cmath>

#include "common/sampling_math.h"

namespace structout {

// An upper bound on a token's perturbed logit z + g(U), compared with a lower bound on
// the winner's score, such as the best score so far.
//
// The noise is bounded by g(U) <= -ln(u 2^-32) with u = U + 0.5. So z + g >= score
// needs
//
//   log2(u) <= 32 - (score - z) log2(e).
//
// For a float (1 + f) 2^e, the bits read as an integer are 2^23 (127 + e + f), and
// e + f <= log2((1 + f) 2^e). So with
//
//   log_limit = 159 - (score - z) log2(e)
//
// a token can win only if the bits of float(U) are at most 2^23 log_limit. Random bits
// decide where log_limit is between 126 (none are small enough) and 159 (all are). The
// high 16 bits of U suffice to rule a token out.
//
// All rounding errors on the way, that of z + g included, stay below 2^-20 |z| + 1e-4.
// log_limit has a margin of 2^-19 |score| + 2e-4, which is more unless |z| is above
// 2 |score| + 100: then z is far from the score, and the token wins or loses with any
// bits. It is stored divided by 4, so that it does not overflow for any finite z.
class DrawBound {
 public:
  DrawBound() = default;
  STRUCTOUT_HOST_DEVICE explicit DrawBound(float score) { raise_to(score); }

  STRUCTOUT_HOST_DEVICE void raise_to(float score) {
    if (score <= score_) return;
    score_ = score;
    offset_ = ((159.0f + 2e-4f) / 4 + fabsf(score) * 0x1p-21f) - score * kQuarterLog2E;
  }

  STRUCTOUT_HOST_DEVICE float score() const { return score_; }

  // A quarter of log_limit for a token of scaled logit z. For z = -inf it is -inf, or
  // NaN before the first raise_to().
  STRUCTOUT_HOST_DEVICE float log_limit(float z) const { return z * kQuarterLog2E + offset_; }

  // True if some random bits let the token win. The smallest u is 1/2.
  STRUCTOUT_HOST_DEVICE static bool can_win(float log_limit) { return log_limit >= 125.9f / 4; }

  // The largest random bits that let it win. Needs can_win(log_limit).
  STRUCTOUT_HOST_DEVICE static uint32_t max_winning_bits(float log_limit) {
    // The 23 mantissa bits of a float in [128, 256) are 2^16 (float - 128).
    const float in_range = log_limit < 128.0f / 4 ? 128.0f : log_limit > 160.0f / 4 ? 160.0f : 4 * log_limit;
    const float limit = float_of_bits((bits_of_float(in_range) & 0x7fffffu) << 7 | 128u << 23);
    return limit < 0x1p32f ? static_cast<uint32_t>(limit) : ~0u;
  }

  // The largest high 16 random bits that let the token win. Needs can_win(log_limit).
  STRUCTOUT_HOST_DEVICE static uint32_t max_winning_coarse_bits(float log_limit) {
    return max_winning_bits(log_limit) >> 16;
  }

  // A test of few instructions that never misses a winner: true if a token with these
  // coarse bits may win. Also true for a few tokens that the two functions above rule
  // out, and if log_limit is NaN.
  //
  // The bits of a float from 32 to 64 grow by 2^18 per unit. So between 16, the log of
  // the smallest coarse bits above 0, and 32, those of a quarter of log_limit and those
  // of the coarse bits as a float, shifted by 7, are the same scale at a distance.
  STRUCTOUT_HOST_DEVICE static bool may_win(float log_limit, uint32_t coarse) {
    constexpr int32_t kDistance = 0x41900000;
    const auto needed = static_cast<int32_t>(bits_of_float(static_cast<float>(coarse)) >> 7);
    return needed + kDistance <= static_cast<int32_t>(bits_of_float(log_limit));
  }

 private:
  static constexpr float kQuarterLog2E = 0x1.7154760000000p-2f;
  float score_ = -FLT_MAX;
  float offset_ = INFINITY;
};

}  // namespace structout
