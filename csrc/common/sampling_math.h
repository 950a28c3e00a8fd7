// The arithmetic of masked_sample, for host and device. docs/sampling_contract.md fixes
// every rounding.
//
// Compile without fused multiply-add (-ffp-contract=off, -fmad=false) and without
// flush-to-zero: then every backend gives the bits of structout/ops/sampling_math.py. The
// functions have no branches, so loops over them vectorise.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/bitmask.h"

namespace structout {

constexpr float kMassScale = 0x1p40f;  // a mass of 1 is 2^40 units of a fixed-point integer
constexpr float kSmallestMinP = 0x1p-126f;

STRUCTOUT_HOST_DEVICE float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

STRUCTOUT_HOST_DEVICE uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// y = (1 + f) * 2^n with 1 + f in [sqrt(1/2), sqrt(2)).
struct SplitFloat {
  float f;
  float n;
};

STRUCTOUT_HOST_DEVICE SplitFloat split(float y) {
  constexpr int32_t kSqrtHalfBits = 0x3f3504f3;
  const int32_t bits = static_cast<int32_t>(bits_of_float(y));
  const int32_t n = (bits - kSqrtHalfBits) >> 23;
  const uint32_t mantissa = static_cast<uint32_t>(bits) - (static_cast<uint32_t>(n) << 23);
  return {float_of_bits(mantissa) - 1.0f, static_cast<float>(n)};
}

// log((1 + f) 2^n), by the polynomial of Cephes' logf.
STRUCTOUT_HOST_DEVICE float log_of_split(float f, float n) {
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -0x1.bd01060000000p-13f;
  float y = 0x1.2043760000000p-4f;
  y = y * f + -0x1.d7a3700000000p-4f;
  y = y * f + 0x1.de4a340000000p-4f;
  y = y * f + -0x1.fcba9e0000000p-4f;
  y = y * f + 0x1.23d37e0000000p-3f;
  y = y * f + -0x1.555ca00000000p-3f;
  y = y * f + 0x1.999d580000000p-3f;
  y = y * f + -0x1.fffff80000000p-3f;
  y = y * f + 0x1.5555540000000p-2f;
  const float square = f * f;
  y = y * f;
  y = y * square;
  y = y + n * kLn2Low;
  y = y - square * 0.5f;
  return (f + y) + n * kLn2High;
}

// log(y) for positive, finite, normal y.
STRUCTOUT_HOST_DEVICE float log_float(float y) {
  const SplitFloat s = split(y);
  return log_of_split(s.f, s.n);
}

constexpr float kExpFloor = -30.0f;
constexpr float kLog2E = 0x1.7154760000000p+0f;
constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: added and subtracted, it rounds

// 2^f for f in [-1/2, 1/2], by the polynomial of Cephes' exp2f. For floats and vectors of
// them.
template <class Floats>
STRUCTOUT_HOST_DEVICE Floats exp2_of_fraction(const Floats& f) {
  Floats y = f * 0x1.41fbbc0000000p-13f + 0x1.5f3e520000000p-10f;
  y = y * f + 0x1.3b2d4c0000000p-7f;
  y = y * f + 0x1.c6aee80000000p-5f;
  y = y * f + 0x1.ebfbdc0000000p-3f;
  y = y * f + 0x1.62e4300000000p-1f;
  return y * f + 0x1.0000000000000p+0f;
}

// exp(t) for t <= 0. Below kExpFloor it is exp(kExpFloor), which has no mass.
STRUCTOUT_HOST_DEVICE float exp_float(float t) {
  const float a = (t < kExpFloor ? kExpFloor : t) * kLog2E;
  const float shifted = a + kRoundToInteger, n = shifted - kRoundToInteger;  // the low bits of `shifted` are n
  return exp2_of_fraction(a - n) * float_of_bits((bits_of_float(shifted) << 23) + (127u << 23));
}

constexpr float kNoMassBelow = -28.0f;

// A token's weight exp(t) in fixed point.
STRUCTOUT_HOST_DEVICE int64_t mass(float t) { return static_cast<int64_t>(exp_float(t) * kMassScale); }

STRUCTOUT_HOST_DEVICE float log_of_mass(int64_t total) {
  return log_float(static_cast<float>(total) * (1 / kMassScale));
}

// Gumbel noise -ln(-ln(v)) from 32 random bits, accurate in both tails. It never
// increases with the bits.
STRUCTOUT_HOST_DEVICE float gumbel(uint32_t bits) {
  const bool is_near_zero = bits < 0x40000000u;  // 1 - v would lose digits of v there: use log1p(-v)
  const uint32_t distance = is_near_zero ? bits : ~bits;
  const float q = (static_cast<float>(distance) + 0.5f) * 0x1p-32f;
  const SplitFloat s = split(q);
  const float e = -log_of_split(is_near_zero ? -q : s.f, is_near_zero ? 0.0f : s.n);
  return -log_float(e);
}

// An integer that orders as the float does. -0 and +0 have the same key.
STRUCTOUT_HOST_DEVICE uint32_t order_key(float x) {
  const uint32_t bits = bits_of_float(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

STRUCTOUT_HOST_DEVICE float float_of_order_key(uint32_t key) {
  return float_of_bits(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

constexpr uint32_t kNaNKey = ~0u;                     // above the order key of +inf
constexpr uint32_t kLowestDrawableKey = 0x00800000u;  // just above that of -inf

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
struct PhiloxWords {
  uint32_t w[4];
};

STRUCTOUT_HOST_DEVICE uint64_t wide_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  // One instruction. For a product of 64-bit integers the compiler also adds the
  // products of the upper halves, which are zero.
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return static_cast<uint64_t>(a) * b;
#endif
}

STRUCTOUT_HOST_DEVICE PhiloxWords philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t key_0 = static_cast<uint32_t>(key), key_1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = wide_product(0xD2511F53u, c0), product_1 = wide_product(0xCD9E8D57u, c2);
    c0 = static_cast<uint32_t>(product_1 >> 32) ^ c1 ^ key_0;
    c1 = static_cast<uint32_t>(product_1);
    c2 = static_cast<uint32_t>(product_0 >> 32) ^ c3 ^ key_1;
    c3 = static_cast<uint32_t>(product_0);
    key_0 += 0x9E3779B9u;
    key_1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// A token's 32 random bits come from two Philox calls, each of which serves 8 tokens.
// The high 16 bits are its coarse bits, which rule out nearly every token (see
// DrawBound). The low 16 are its fine bits, which only the remaining candidates need.
constexpr int kTokensPerPhilox = 8;
constexpr uint32_t kFineCounterBit = 0x80000000u;

// The 16-bit noise of tokens 8 * group to 8 * group + 7: token i has half i & 1 of word
// i >> 1. The last counter word is reserved for independent streams.
STRUCTOUT_HOST_DEVICE PhiloxWords noise_words(int64_t seed, int64_t position, uint32_t group) {
  return philox(static_cast<uint64_t>(seed), static_cast<uint32_t>(position),
                static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32), group, 0);
}

// The half of `words` that belongs to a token. Words are selected, not indexed: a GPU
// keeps an array in local memory if its index is not constant.
STRUCTOUT_HOST_DEVICE uint32_t half_of(const PhiloxWords& words, uint32_t token) {
  const uint32_t low = token & 2 ? words.w[1] : words.w[0], high = token & 2 ? words.w[3] : words.w[2];
  return (token & 4 ? high : low) >> (token & 1) * 16 & 0xffffu;
}

STRUCTOUT_HOST_DEVICE uint32_t coarse_noise(int64_t seed, int64_t position, uint32_t token) {
  return half_of(noise_words(seed, position, token / kTokensPerPhilox), token);
}

STRUCTOUT_HOST_DEVICE uint32_t fine_noise(int64_t seed, int64_t position, uint32_t token) {
  return half_of(noise_words(seed, position, token / kTokensPerPhilox | kFineCounterBit), token);
}

STRUCTOUT_HOST_DEVICE uint32_t noise_bits(int64_t seed, int64_t position, uint32_t token) {
  return coarse_noise(seed, position, token) << 16 | fine_noise(seed, position, token);
}

}  // namespace structout
