// Exact conversion of 16-bit logits to float32.
#pragma once

#include "common/sampling_math.h"

namespace structout::cpu {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

STRUCTOUT_HOST_DEVICE float widen(float x) { return x; }
STRUCTOUT_HOST_DEVICE float widen(BFloat16 x) { return float_of_bits(static_cast<uint32_t>(x.bits) << 16); }
// float16: the exponent is scaled by 2^112, the difference of the biases. Infinity and NaN
// keep their mantissa.
STRUCTOUT_HOST_DEVICE float widen(Half x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  const float scaled = float_of_bits(magnitude << 13) * 0x1p112f;  // exact, also for subnormals
  const uint32_t bits = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u : bits_of_float(scaled);
  return float_of_bits(bits | static_cast<uint32_t>(x.bits & 0x8000u) << 16);
}

}  // namespace structout::cpu
