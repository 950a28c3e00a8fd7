// The sampling parameters of a row and the scale of its logits. Host and device.
#pragma once

#include <cfloat>
#include <cmath>

#include "common/masked_sample.h"
#include "common/sampling_math.h"

namespace structout {

// Has no constructor, because a GPU's shared memory allows none.
struct RowParams {
  float temperature, top_p, min_p;
  int64_t top_k, seed, position;

  STRUCTOUT_HOST_DEVICE void load(const MaskedSampleParams& params, int64_t row) {
    temperature = params.temperature.at(row);
    top_p = params.top_p.at(row, 1.0f);
    min_p = params.min_p.at(row, 0.0f);
    top_k = params.top_k.values == nullptr ? 0 : params.top_k.at(row);
    seed = params.seed.at(row);
    position = params.position.at(row);
  }

  // NaN parameters are invalid too.
  STRUCTOUT_HOST_DEVICE bool is_valid() const {
    return temperature >= 0 && temperature <= FLT_MAX && top_p >= 0 && min_p >= 0;
  }
  STRUCTOUT_HOST_DEVICE bool is_greedy() const { return temperature == 0; }
  STRUCTOUT_HOST_DEVICE bool has_min_p() const { return min_p >= kSmallestMinP; }
  STRUCTOUT_HOST_DEVICE bool has_top_k() const { return top_k > 0; }
  STRUCTOUT_HOST_DEVICE bool has_top_p() const { return top_p < 1; }
  STRUCTOUT_HOST_DEVICE bool has_filters() const { return !is_greedy() && (has_min_p() || has_top_k() || has_top_p()); }
  STRUCTOUT_HOST_DEVICE float inverse_temperature() const { return is_greedy() ? 1.0f : 1.0f / temperature; }

  // The lowest t that min_p keeps.
  STRUCTOUT_HOST_DEVICE float lowest_t() const { return has_min_p() ? log_float(min_p < 1 ? min_p : 1.0f) : -INFINITY; }

  // The mass that top_p has to reach, where `total` is what the other filters left.
  STRUCTOUT_HOST_DEVICE int64_t top_p_target(int64_t total) const {
    const auto target = static_cast<int64_t>(top_p * static_cast<float>(total));
    return target < 1 ? 1 : target > total ? total : target;
  }
};

// Divides logits by the temperature: z = x / temperature, t = z - max(z). If the
// highest z overflows, only logits equal to the highest can be drawn.
struct Scale {
  float inverse, highest, z_of_highest;
  bool has_overflown;

  STRUCTOUT_HOST_DEVICE Scale(float highest, float inverse)
      : inverse(inverse),
        highest(highest),
        z_of_highest(highest * inverse),
        has_overflown(!(fabsf(z_of_highest) <= FLT_MAX)) {}

  // t, where nothing has overflown.
  STRUCTOUT_HOST_DEVICE float finite_t(float x) const { return x * inverse - z_of_highest; }

  STRUCTOUT_HOST_DEVICE float z(float x) const {
    return has_overflown ? (x == highest ? 0.0f : -INFINITY) : x * inverse;
  }
  STRUCTOUT_HOST_DEVICE float t(float x) const {
    return has_overflown ? (x == highest ? 0.0f : -INFINITY) : x * inverse - z_of_highest;
  }
};

STRUCTOUT_HOST_DEVICE Scale scale_of(float highest, float temperature) {
  return {highest, temperature == 0 ? 1.0f : 1.0f / temperature};
}

}  // namespace structout
