// One row from its logits to its token, over whatever holds the logits: a RowReader, or a TokenList in shared memory.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../sampling_math.h"
#include "compat.h"
#include "race.cuh"
#include "row_reader.cuh"
#include "row_team.cuh"
#include "select.cuh"

namespace structout::cuda {

constexpr uint32_t kNaNKey = ~0u;                     // above the order key of +inf
constexpr uint32_t kLowestDrawableKey = 0x00800000u;  // just above that of -inf
constexpr int kMaxListed = 3072;                      // 24 KB; more tokens than that are read in place

// One block's list. The thread that lists a token need not be the one that visits it.
struct TokenList {
  float x[kMaxListed];
  int32_t ids[kMaxListed];
  unsigned size;

  template <class Visit>
  __device__ void for_each(Visit visit) {
    for (unsigned i = threadIdx.x; i < size; i += blockDim.x) visit(x[i], ids[i]);
  }
};

// In shared memory, for they are needed at the ends of a row and would hold registers all along.
struct RowParams {
  float temperature, top_p, min_p;
  int64_t top_k, seed, position;

  __device__ void load(const MaskedSampleParams& params, int64_t row) {
    temperature = params.temperature.at(row);
    top_p = params.top_p.at(row, 1.0f);
    min_p = params.min_p.at(row, 0.0f);
    top_k = params.top_k.values == nullptr ? 0 : params.top_k.at(row);
    seed = params.seed.at(row);
    position = params.position.at(row);
  }

  // False for NaN.
  __device__ bool is_valid() const { return temperature >= 0 && temperature <= FLT_MAX && top_p >= 0 && min_p >= 0; }
  __device__ bool is_greedy() const { return temperature == 0; }
  __device__ bool has_filters() const { return !is_greedy() && (min_p >= kSmallestMinP || top_k > 0 || top_p < 1); }
  __device__ float inverse_temperature() const { return is_greedy() ? 1.0f : 1.0f / temperature; }
};

struct RowScratch {
  TeamScratch team;
  SelectScratch select;
  TokenList list;
  RowParams row;
  unsigned highest_score;  // an order key
};

struct Survey {
  float highest = -INFINITY;
  bool has_nan = false;

  __device__ void add(float x) {
    highest = fmaxf(highest, x);  // which drops NaN
    has_nan |= x != x;
  }
  __device__ uint32_t key() const { return has_nan ? kNaNKey : order_key(highest); }
};

// Logits over temperature. Where the largest overflows, only those equal to it can be drawn.
struct Scale {
  float inverse, highest, z_of_highest;
  bool has_overflown;

  __device__ Scale(float highest, float inverse)
      : inverse(inverse),
        highest(highest),
        z_of_highest(highest * inverse),
        has_overflown(!(fabsf(z_of_highest) <= FLT_MAX)) {}

  __device__ float z(float x) const { return has_overflown ? (x == highest ? 0.0f : -INFINITY) : x * inverse; }
  __device__ float t(float x) const {
    return has_overflown ? (x == highest ? 0.0f : -INFINITY) : x * inverse - z_of_highest;
  }
};

struct Kept {
  Scale scale;
  float lowest_t;       // by min_p
  uint32_t lowest_key;  // by top_k and top_p

  __device__ Kept(const Scale& scale, float min_p)
      : scale(scale),
        lowest_t(min_p >= kSmallestMinP ? log_float(fminf(min_p, 1.0f)) : -INFINITY),
        lowest_key(kLowestDrawableKey) {}

  __device__ bool holds(float x) const { return order_key(x) >= lowest_key && scale.t(x) >= lowest_t; }
};

__device__ __forceinline__ void begin_race(RowScratch& scratch) {
  __syncthreads();
  if (threadIdx.x == 0) scratch.highest_score = 0;
  __syncthreads();
}

__device__ __forceinline__ void share_bar(Race& race, RowScratch& scratch) {
  race.share_bar(&scratch.highest_score, max_of_warp(race.best_key()), lane_id() == 0);
}

// z_of(x): -inf for what takes no part.
template <FloatFormat kFormat, int kInFlight, class ZOf>
__device__ void run_race(Race& race, RowReader<kFormat, kInFlight>& reader, RowScratch& scratch, ZOf z_of) {
  constexpr int kTokens = Vector<kFormat>::kTokens;
  begin_race(scratch);
  reader.for_each_vector(
      [&](const float (&x)[kTokens], int32_t first) {
        float z[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) z[i] = z_of(x[i]);
#pragma unroll
        for (int i = 0; i < kTokens; i += 4) race.enter_four(z + i, first + i);
      },
      [&] { share_bar(race, scratch); });
}

template <class ZOf>
__device__ void run_race(Race& race, TokenList& list, RowScratch& scratch, ZOf z_of) {
  begin_race(scratch);
  for (unsigned first = 0; first < list.size; first += blockDim.x) {
    const unsigned i = first + threadIdx.x;
    if (i < list.size) race.enter(z_of(list.x[i]), list.ids[i]);
    share_bar(race, scratch);
  }
}

// Returns the outcome in this thread.
template <class Source>
__device__ uint64_t draw_kept(Source& source, RowScratch& scratch, const Kept& kept) {
  Race race(scratch.row.seed, scratch.row.position, scratch.row.is_greedy());
  race.expect(kept.scale.z(kept.scale.highest));
  run_race(race, source, scratch, [&](float x) { return kept.holds(x) ? kept.scale.z(x) : -INFINITY; });
  return race.outcome();
}

enum class FilterStage { kTopK, kTopP, kDone };

// Lists what one selection has left of the row, if it is few enough in every block.
template <class Team, class Reader>
__device__ bool list_candidates(Team& team, Reader& reader, RowScratch& scratch, const Kept& kept,
                                uint32_t lowest_key) {
  TokenList& list = scratch.list;
  __syncthreads();
  if (threadIdx.x == 0) list.size = 0;
  __syncthreads();
  bool is_full = false;
  reader.for_each([&](float x, int32_t token) {
    if (is_full || order_key(x) < lowest_key || !kept.holds(x)) return;
    const unsigned i = atomicAdd(&list.size, 1u);
    is_full = i >= kMaxListed;
    if (is_full) return;
    list.x[i] = x;
    list.ids[i] = token;
  });
  return team.reduce(is_full ? 1 : 0, Max{}) == 0;
}

template <class Team, class Source>
__device__ void select_digit(Team& team, Source& source, RowScratch& scratch, const Kept& kept, FilterStage stage,
                             int digit) {
  Histogram& histogram = scratch.select.histogram;
  const auto for_each_key = [&](auto visit) {
    source.for_each([&](float x, int32_t) {
      if (!kept.holds(x)) return;
      visit(order_key(x), [&](uint32_t bin) {
        if (stage == FilterStage::kTopK) {
          histogram.count(bin);
        } else {
          const int64_t weight = mass(kept.scale.t(x));
          if (weight != 0) histogram.add(bin, weight);
        }
      });
    });
  };
  const auto target_of = [&](uint64_t total) -> uint64_t {
    if (stage == FilterStage::kTopK) return static_cast<uint64_t>(scratch.row.top_k);
    const auto target = static_cast<uint64_t>(scratch.row.top_p * static_cast<float>(static_cast<int64_t>(total)));
    return target < 1 ? 1 : target > total ? total : target;
  };
  select_digit(team, scratch.select, digit, for_each_key, target_of);
}

// Applies the filters from a stage and a digit on, draws and returns the outcome in this thread. As soon as
// what may be kept fits a list, goes on with that list.
template <class Team, class Source>
__device__ uint64_t draw_filtered(Team& team, Source& source, RowScratch& scratch, Kept kept, FilterStage stage,
                                  int digit) {
  const Selection& selection = scratch.select.selection;
  for (; stage != FilterStage::kDone; digit = 0) {
    const bool is_on = stage == FilterStage::kTopK ? scratch.row.top_k > 0 : scratch.row.top_p < 1;
    while (is_on && digit < kNumDigits) {
      select_digit(team, source, scratch, kept, stage, digit++);
      if (selection.remaining == 0) break;
      if constexpr (!std::is_same_v<Source, TokenList>) {
        const uint64_t room = uint64_t{kMaxListed} * static_cast<uint64_t>(team.num_blocks());
        const bool may_fit = stage == FilterStage::kTopP || selection.at_or_above <= room;
        if (digit == 1 && may_fit && list_candidates(team, source, scratch, kept, selection.prefix)) {
          return draw_filtered(team, scratch.list, scratch, kept, stage, digit);
        }
      }
    }
    if (is_on && selection.remaining != 0 && selection.prefix > kept.lowest_key) kept.lowest_key = selection.prefix;
    stage = stage == FilterStage::kTopK ? FilterStage::kTopP : FilterStage::kDone;
  }
  return draw_kept(source, scratch, kept);
}

struct Drawn {
  int32_t id;  // -1: nothing can be drawn
  Scale scale;
  int64_t total_mass;  // only where it was asked for
};

// Without filters, z + g needs no maximum, so one pass over the logits finds it and the winner. Returns the outcome in
// this thread, which counts unless the row turns out to overflow.
template <class Source>
__device__ uint64_t draw_unfiltered(Source& source, RowScratch& scratch, Survey& survey) {
  const float inverse = scratch.row.inverse_temperature();
  Race race(scratch.row.seed, scratch.row.position, scratch.row.is_greedy());
  run_race(race, source, scratch, [&](float x) {
    survey.add(x);
    return x * inverse;
  });
  return race.outcome();
}

// The same to all threads of the team.
template <bool kHasFilters, class Team, class Source>
__device__ Drawn draw(Team& team, Source& source, RowScratch& scratch, bool wants_mass) {
  const bool is_filtered = kHasFilters && scratch.row.has_filters();
  Survey survey;
  uint64_t outcome = 0;
  if (is_filtered) {
    source.for_each([&](float x, int32_t) { survey.add(x); });
  } else {
    outcome = draw_unfiltered(source, scratch, survey);
  }
  const uint32_t highest = static_cast<uint32_t>(team.reduce(survey.key(), Max{}));
  const Scale scale(float_of_order_key(highest), scratch.row.inverse_temperature());
  if (highest == kNaNKey || highest < kLowestDrawableKey) return {-1, scale, 0};
  if (is_filtered || scale.has_overflown) {
    const Kept kept(scale, is_filtered ? scratch.row.min_p : 0.0f);
    if constexpr (kHasFilters) {
      outcome = draw_filtered(team, source, scratch, kept, is_filtered ? FilterStage::kTopK : FilterStage::kDone, 0);
    } else {
      outcome = draw_kept(source, scratch, kept);
    }
  }
  const int32_t id = Race::winner_of(team.reduce(outcome, Max{}));

  int64_t total_mass = 0;
  if (wants_mass) {
    source.for_each([&](float x, int32_t) {
      if (x > -INFINITY) total_mass += mass(scale.t(x));
    });
    total_mass = static_cast<int64_t>(team.reduce(static_cast<uint64_t>(total_mass), Sum{}));
  }
  return {id, scale, total_mass};
}

}  // namespace structout::cuda
