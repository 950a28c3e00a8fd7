// common/sampling_math.h over arrays, as a library. tests/ops/test_sampling_math.py
// builds it with several sets of compiler flags.
#include "common/sampling_math.h"

using namespace structout;

extern "C" {

void gumbel_of(const uint32_t* bits, float* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = gumbel(bits[i]);
}

void mass_of(const float* t, int64_t* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = mass(t[i]);
}

void log_of(const float* y, float* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = log_float(y[i]);
}

void log_of_mass_of(const int64_t* total, float* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = log_of_mass(total[i]);
}

void noise_bits_of(int64_t seed, int64_t position, const int64_t* tokens, uint32_t* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    result[i] = noise_bits(seed, position, static_cast<uint32_t>(tokens[i]));
  }
}

void philox_of(uint64_t key, const uint32_t* counter, uint32_t* result) {
  const PhiloxWords words = philox(key, counter[0], counter[1], counter[2], counter[3]);
  for (int i = 0; i < 4; ++i) result[i] = words.w[i];
}

// The number of bits in [first, last) whose successor has more noise. Must be 0.
int64_t count_increases_of_gumbel(uint32_t first, uint32_t last) {
  int64_t increases = 0;
  for (uint32_t bits = first; bits < last; ++bits) increases += gumbel(bits + 1) > gumbel(bits);
  return increases;
}
}
