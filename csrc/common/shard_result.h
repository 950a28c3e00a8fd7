// The draw of one shard of the vocabulary for a row, and the merge of all shards' draws
// into the row's. Host and device.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "common/sampling_row.h"

namespace structout {

struct ShardResult {
  float highest;  // allowed logit: -inf if there is none; NaN if one is NaN or a parameter is invalid
  float score;    // of the token drawn: its scaled logit plus noise; greedy: its logit
  int32_t token;  // -1: nothing can be drawn
  float logit;    // of the token drawn

  STRUCTOUT_HOST_DEVICE static ShardResult nothing(float highest) { return {highest, -INFINITY, -1, -INFINITY}; }
};

// Ranks exchange results as int32 [3 or 4, num_rows], one row per member and floats by
// their bits. The logits, the last row, are needed for logprobs only.
constexpr int64_t kShardResultFields = 4;

STRUCTOUT_HOST_DEVICE void store_shard_result(int32_t* shard_results, int64_t num_rows, int64_t row,
                                              const ShardResult& result) {
  const auto as_bits = [](float x) { return static_cast<int32_t>(bits_of_float(x + 0.0f)); };  // + 0: -0 becomes 0
  shard_results[row] = as_bits(result.highest);
  shard_results[row + num_rows] = as_bits(result.score);
  shard_results[row + 2 * num_rows] = result.token;
  shard_results[row + 3 * num_rows] = as_bits(result.logit);
}

STRUCTOUT_HOST_DEVICE ShardResult load_shard_result(const int32_t* shard_results, int64_t num_fields, int64_t num_rows,
                                                    int64_t row) {
  const auto as_float = [](int32_t bits) { return float_of_bits(static_cast<uint32_t>(bits)); };
  return {as_float(shard_results[row]), as_float(shard_results[row + num_rows]), shard_results[row + 2 * num_rows],
          num_fields == kShardResultFields ? as_float(shard_results[row + 3 * num_rows]) : 0.0f};
}

struct MergeShardResultsParams {
  const int32_t* shard_results;  // [num_shards, num_fields, num_rows]
  int64_t num_shards, num_fields, num_rows;
  Strided<float> temperatures;
  int64_t* ids;     // [num_rows]
  int32_t* merged;  // [kShardResultFields, num_rows]

  // Each shard scales by its own highest logit. The difference matters only if a scaled
  // logit overflows:
  // - If the row's highest overflows, so does that of every shard that holds it. Their
  //   scores are noise alone, as the contract asks; other shards cannot win.
  // - If the row's highest does not overflow, a shard whose own does (towards -inf)
  //   has nothing that could win.
  STRUCTOUT_HOST_DEVICE ShardResult merge(int64_t row) const {
    float highest = -INFINITY;
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      const float shard_highest = shard_result(shard, row).highest;
      if (shard_highest != shard_highest) return ShardResult::nothing(shard_highest);
      highest = shard_highest > highest ? shard_highest : highest;
    }
    const float temperature = temperatures.at(row);
    const Scale scale = scale_of(highest, temperature);
    ShardResult best = ShardResult::nothing(highest);
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      const ShardResult other = shard_result(shard, row);
      const bool can_win = temperature == 0 || scale.has_overflown ? other.highest == highest
                                                                   : fabsf(other.highest * scale.inverse) <= FLT_MAX;
      if (other.token < 0 || !can_win) continue;
      const bool is_better = other.score > best.score || (other.score == best.score && other.token < best.token);
      if (best.token < 0 || is_better) best = {highest, other.score, other.token, other.logit};
    }
    return best;
  }

  STRUCTOUT_HOST_DEVICE void run(int64_t row) const {
    const ShardResult result = merge(row);
    ids[row] = result.token;
    store_shard_result(merged, num_rows, row, result);
  }

 private:
  STRUCTOUT_HOST_DEVICE ShardResult shard_result(int64_t shard, int64_t row) const {
    return load_shard_result(shard_results + shard * num_fields * num_rows, num_fields, num_rows, row);
  }
};

}  // namespace structout
