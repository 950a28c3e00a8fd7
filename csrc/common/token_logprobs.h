// token_logprobs: the logprobs and ranks of given tokens, and the likeliest tokens of
// each row. Its three steps are the structs that cross from the torch bindings to the
// CPU and CUDA kernels. With a sharded vocabulary, each rank takes the first two on its
// columns, and ranks exchange the results before the next step.
#pragma once

#include <cmath>

#include "common/masked_logits.h"
#include "common/sampling_row.h"

namespace structout {

constexpr int64_t kMaxTopTokens = 64;

// Step 1: the likeliest tokens of each row, and the logit of the token it was given.
// Disallowed tokens, NaN and -inf do not count.
struct TopTokensParams : MaskedLogits {
  Strided<float> temperature;  // absent: 1. Where it is invalid, nothing is found
  Strided<int64_t> token_ids;  // [num_rows]. Where it is negative, nothing is found
  int64_t num_top;             // 1 ... kMaxTopTokens
  int64_t* top_ids;            // [num_rows, num_top], contiguous; -1 where there are fewer
  float* top_logits;           // [num_rows, num_top], contiguous; -inf where there are fewer
  float* token_logits;         // [num_rows]; -inf where the token does not count

  STRUCTOUT_HOST_DEVICE bool is_skipped(int64_t row) const {
    const float t = temperature.at(row, 1.0f);
    return token_ids.at(row) < 0 || !(t >= 0 && t <= FLT_MAX);
  }
  STRUCTOUT_HOST_DEVICE void store_top(int64_t row, int64_t place, int64_t token, float logit) const {
    top_ids[row * num_top + place] = token;
    top_logits[row * num_top + place] = logit;
  }
  STRUCTOUT_HOST_DEVICE void store_no_top(int64_t row, int64_t first_place) const {
    for (int64_t place = first_place; place < num_top; ++place) store_top(row, place, -1, -INFINITY);
  }

  // The logit of the row's token if it counts, or else -inf.
  template <class Widen>
  STRUCTOUT_HOST_DEVICE float token_logit(int64_t row, const MaskRow& mask, const Widen& widen) const {
    const int64_t token = token_ids.at(row);
    if (token < vocab_begin || token >= vocab_end) return -INFINITY;
    const bool is_allowed = mask.is_free || mask.word(token / kBitsPerWord) >> (token % kBitsPerWord) & 1;
    const float x = is_allowed ? widen(token) : -INFINITY;
    return x > -INFINITY ? x : -INFINITY;  // also for NaN
  }
};

// Step 2: what the logprobs and ranks need to know about the other tokens.
struct RowTotalsParams : MaskedLogits {
  Strided<float> temperature;  // absent: 1
  Strided<float> highest;      // [num_rows], of the whole row; -inf: the totals are 0
  const float* token_logits;   // [num_rows]
  int64_t* totals;             // [2, num_rows]: the mass of all tokens; how many have a higher logit than the token

  STRUCTOUT_HOST_DEVICE void store(int64_t row, int64_t mass, int64_t num_likelier) const {
    totals[row] = mass;
    totals[num_rows + row] = num_likelier;
  }
};

// Step 3: logprobs and ranks from the totals of all shards.
struct MergeTotalsParams {
  const int64_t* totals;  // [num_shards, 2, num_rows]
  int64_t num_shards, num_rows, num_top;
  Strided<float> temperature;  // absent: 1
  Strided<float> highest;      // [num_rows]
  const float* token_logits;   // [num_rows]
  const float* top_logits;     // [num_rows, num_top], contiguous
  float* logprobs;             // [num_rows]
  int64_t* ranks;              // [num_rows]: 1 + the number of likelier tokens; 0: the token does not count
  float* top_logprobs;         // [num_rows, num_top], contiguous

  STRUCTOUT_HOST_DEVICE void run(int64_t row) const {
    int64_t mass = 0, num_likelier = 0;
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      const int64_t* of_shard = totals + shard * 2 * num_rows;
      mass += of_shard[row];
      num_likelier += of_shard[num_rows + row];
    }
    const bool is_known = mass >= 0;  // a gather that failed fills the totals with -1
    const Scale scale = scale_of(highest.at(row) + 0.0f, temperature.at(row, 1.0f));
    const float log_total = is_known ? log_of_mass(mass) : NAN;
    const auto logprob = [&](float x) { return x == -INFINITY ? x : scale.t(x + 0.0f) - log_total; };  // + 0: no -0
    logprobs[row] = logprob(token_logits[row]);
    ranks[row] = is_known && token_logits[row] > -INFINITY ? 1 + num_likelier : 0;
    for (int64_t i = row * num_top; i < (row + 1) * num_top; ++i) top_logprobs[i] = logprob(top_logits[i]);
  }
};

// All steps of rows that are whole. Each reads what those before it have written.
struct TokenLogprobsParams {
  TopTokensParams top;
  RowTotalsParams totals;
  MergeTotalsParams merged;
};

}  // namespace structout
