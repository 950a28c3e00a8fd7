// One row from its logits to its token, over whatever holds the logits: a RowReader, or a TokenList in shared memory.
#pragma once

#include <cstdint>

#include "cuda/filters.cuh"
#include "cuda/gumbel_draw.cuh"

namespace structout::cuda {

struct Drawn {
  int32_t id;  // -1: nothing can be drawn
  float score;
  Scale scale;         // of NaN, if a logit is
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
__device__ Drawn draw(Team& team, Source& source, RowScratch& scratch, bool return_logprobs) {
  const bool is_filtered = kHasFilters && scratch.row.has_filters();
  Survey survey;
  uint64_t outcome = 0;
  if (is_filtered) {
    source.for_each([&](float x, int32_t) { survey.add(x); });
  } else {
    outcome = draw_unfiltered(source, scratch, survey);
  }
  const uint32_t highest = static_cast<uint32_t>(team.reduce(survey.key(), Max{}));
  const Scale scale(float_of_order_key(highest), scratch.row.inverse_temperature());  // kNaNKey is that of a NaN
  if (highest == kNaNKey || highest < kLowestDrawableKey) return {-1, -INFINITY, scale, 0};
  if (is_filtered || scale.has_overflown) {
    const Kept kept{scale, is_filtered ? scratch.row.lowest_t() : -INFINITY};
    if constexpr (kHasFilters) {
      outcome = draw_filtered(team, source, scratch, kept, is_filtered ? FilterStage::kTopK : FilterStage::kDone, 0);
    } else {
      outcome = draw_kept(source, scratch, kept);
    }
  }
  outcome = team.reduce(outcome, Max{});

  int64_t total_mass = 0;
  if (return_logprobs) {
    source.for_each([&](float x, int32_t) {
      if (x > -INFINITY) total_mass += mass(scale.t(x));
    });
    total_mass = static_cast<int64_t>(team.reduce(static_cast<uint64_t>(total_mass), Sum{}));
  }
  return {Race::winner_of(outcome), Race::score_of(outcome), scale, total_mass};
}

}  // namespace structout::cuda
