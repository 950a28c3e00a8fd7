// What a row comes to, and how the row's outcome follows from those of its shards. Host and device.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "common/sampling_row.h"

namespace structout {

struct Outcome {
  float highest;  // of the allowed logits: -inf if there is none, NaN if one is NaN or the row's values are invalid
  float score;    // of the token drawn: its scaled logit plus noise; greedy: its logit
  int32_t token;  // -1: nothing can be drawn
  float logit;    // of the token drawn

  STRUCTOUT_HOST_DEVICE static Outcome nothing(float highest) { return {highest, -INFINITY, -1, -INFINITY}; }
};

// Outcomes as they travel: int32 [3 or 4, num_rows], each member in its bits. Only logprobs need the logits.
constexpr int64_t kOutcomeFields = 4;

STRUCTOUT_HOST_DEVICE void store_outcome(int32_t* outcomes, int64_t num_rows, int64_t row, const Outcome& outcome) {
  const auto as_bits = [](float x) { return static_cast<int32_t>(bits_of_float(x + 0.0f)); };  // + 0: -0 becomes 0
  outcomes[row] = as_bits(outcome.highest);
  outcomes[row + num_rows] = as_bits(outcome.score);
  outcomes[row + 2 * num_rows] = outcome.token;
  outcomes[row + 3 * num_rows] = as_bits(outcome.logit);
}

STRUCTOUT_HOST_DEVICE Outcome load_outcome(const int32_t* outcomes, int64_t num_fields, int64_t num_rows, int64_t row) {
  const auto as_float = [](int32_t bits) { return float_of_bits(static_cast<uint32_t>(bits)); };
  return {as_float(outcomes[row]), as_float(outcomes[row + num_rows]), outcomes[row + 2 * num_rows],
          num_fields == kOutcomeFields ? as_float(outcomes[row + 3 * num_rows]) : 0.0f};
}

STRUCTOUT_HOST_DEVICE Scale scale_of(float highest, float temperature) {
  return {highest, temperature == 0 ? 1.0f : 1.0f / temperature};
}

struct MergeOutcomesParams {
  const int32_t* outcomes;  // [num_shards, num_fields, num_rows]
  int64_t num_shards, num_fields, num_rows;
  Strided<float> temperature;
  int64_t* ids;     // [num_rows]
  int32_t* merged;  // [kOutcomeFields, num_rows]

  // A shard scales by its own highest logit, which matters only where that product overflows. If the row's does, so do
  // those of the shards that hold the row's highest logit, and their scores are noise alone, as they should be. If the
  // row's does not, a shard whose own does (towards -inf) has nothing that could win.
  STRUCTOUT_HOST_DEVICE Outcome merge(int64_t row) const {
    float highest = -INFINITY;
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      const float of_shard = outcome_of(shard, row).highest;
      if (of_shard != of_shard) return Outcome::nothing(of_shard);
      highest = of_shard > highest ? of_shard : highest;
    }
    const float heat = temperature.at(row);
    const Scale scale = scale_of(highest, heat);
    Outcome best = Outcome::nothing(highest);
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      const Outcome other = outcome_of(shard, row);
      const bool may_win =
          heat == 0 || scale.has_overflown ? other.highest == highest : fabsf(other.highest * scale.inverse) <= FLT_MAX;
      if (other.token < 0 || !may_win) continue;
      const bool is_better = other.score > best.score || (other.score == best.score && other.token < best.token);
      if (best.token < 0 || is_better) best = {highest, other.score, other.token, other.logit};
    }
    return best;
  }

  STRUCTOUT_HOST_DEVICE void run(int64_t row) const {
    const Outcome outcome = merge(row);
    ids[row] = outcome.token;
    store_outcome(merged, num_rows, row, outcome);
  }

 private:
  STRUCTOUT_HOST_DEVICE Outcome outcome_of(int64_t shard, int64_t row) const {
    return load_outcome(outcomes + shard * num_fields * num_rows, num_fields, num_rows, row);
  }
};

struct MergeMassesParams {
  const int64_t* masses;  // [num_shards, num_rows], of the allowed tokens
  const int32_t* merged;  // [kOutcomeFields, num_rows]
  int64_t num_shards, num_rows;
  Strided<float> temperature;
  float* logprobs;  // [num_rows]

  STRUCTOUT_HOST_DEVICE void run(int64_t row) const {
    const Outcome outcome = load_outcome(merged, kOutcomeFields, num_rows, row);
    int64_t total = 0;
    for (int64_t shard = 0; shard < num_shards; ++shard) total += masses[shard * num_rows + row];
    const Scale scale = scale_of(outcome.highest, temperature.at(row));
    const bool is_known = total >= 0;  // not where the masses of other ranks did not come
    const float log_total = is_known ? log_of_mass(total) : NAN;
    logprobs[row] = outcome.token < 0 ? -INFINITY : scale.t(outcome.logit) - log_total;
  }
};

}  // namespace structout
