// Samples one row from any source of logits: a RowReader, or a TokenList in shared
// memory.
#pragma once

#include <cstdint>

#include "cuda/filters.cuh"
#include "cuda/gumbel_draw.cuh"

namespace structout::cuda {

struct Drawn {
  int32_t id;  // -1: nothing can be drawn
  float score;
  Scale scale;         // its highest logit is NaN if any allowed logit is
  int64_t total_mass;  // 0 unless logprobs are returned
};

// Draws without filters. z + g does not depend on the highest logit, so one pass finds
// both the highest logit and the winner. Returns this thread's packed best, which is
// valid unless the scale of the row turns out to overflow.
template <class Source>
__device__ uint64_t draw_unfiltered(Source& source, RowScratch& scratch, Survey& survey) {
  const float inverse = scratch.row.inverse_temperature();
  GumbelDraw gumbel_draw(scratch.row.seed, scratch.row.position, scratch.row.is_greedy());
  add_all(gumbel_draw, source, scratch, [&](float x) {
    survey.add(x);
    return x * inverse;
  });
  return gumbel_draw.packed_best();
}

// Draws from the source. All threads of the team get the same result.
template <bool kHasFilters, class Team, class Source>
__device__ Drawn draw(Team& team, Source& source, RowScratch& scratch, bool return_logprobs) {
  const bool is_filtered = kHasFilters && scratch.row.has_filters();
  Survey survey;
  uint64_t packed_best = 0;
  if (is_filtered) {
    source.for_each([&](float x, int32_t) { survey.add(x); });
  } else {
    packed_best = draw_unfiltered(source, scratch, survey);
  }
  const uint32_t highest = static_cast<uint32_t>(team.reduce(survey.key(), Max{}));
  const Scale scale(float_of_order_key(highest), scratch.row.inverse_temperature());  // kNaNKey gives NaN
  if (highest == kNaNKey || highest < kLowestDrawableKey) return {-1, -INFINITY, scale, 0};
  if (is_filtered || scale.has_overflown) {
    const Kept kept{scale, is_filtered ? scratch.row.lowest_t() : -INFINITY};
    if constexpr (kHasFilters) {
      packed_best =
          draw_filtered(team, source, scratch, kept, is_filtered ? FilterStage::kTopK : FilterStage::kDone, 0);
    } else {
      packed_best = draw_kept(source, scratch, kept);
    }
  }
  packed_best = team.reduce(packed_best, Max{});

  int64_t total_mass = 0;
  if (return_logprobs) {
    source.for_each([&](float x, int32_t) {
      if (x > -INFINITY) total_mass += mass(scale.t(x));
    });
    total_mass = static_cast<int64_t>(team.reduce(static_cast<uint64_t>(total_mass), Sum{}));
  }
  return {GumbelDraw::token_of(packed_best), GumbelDraw::score_of(packed_best), scale, total_mass};
}

}  // namespace structout::cuda
