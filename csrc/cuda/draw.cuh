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
  Scale scale;  // its highest logit is NaN if any allowed logit is
};

// Draws from the source. All threads of the team get the same result; if the row has
// filters, only those of the first block. With logprobs, the first thread finds the mass
// of all tokens in scratch.total_mass.
template <bool kHasFilters, class Team, class Source>
__device__ Drawn draw(Team& team, Source& source, RowScratch& scratch, bool return_logprobs) {
  const bool is_filtered = kHasFilters && scratch.row.has_filters();
  const float inverse = scratch.row.inverse_temperature();
  typename Source::Survey survey;
  uint64_t packed_best = 0;
  if (is_filtered) {
    survey = source.survey();
  } else {
    // z + g does not depend on the highest logit, so one pass finds both that and the
    // winner, which is valid unless the scale of the row turns out to overflow.
    GumbelDraw gumbel_draw(scratch.row.seed, scratch.row.position, scratch.row.is_greedy());
    survey = add_all(gumbel_draw, source, scratch, [&](float x) { return x * inverse; });
    packed_best = gumbel_draw.packed_best();
  }
  const float highest_of_thread = survey.highest();
  const uint32_t key_of_thread = highest_of_thread != highest_of_thread ? kNaNKey : order_key(highest_of_thread);
  const Values<2> best = team.reduce(Values<2>{{key_of_thread, packed_best}}, Max{});
  const auto highest = static_cast<uint32_t>(best.at[0]);
  const Scale scale(float_of_order_key(highest), inverse);  // kNaNKey gives NaN
  if (highest == kNaNKey || highest < kLowestDrawableKey) return {-1, -INFINITY, scale};
  packed_best = best.at[1];

  if (return_logprobs) {
    uint64_t total = 0;
    source.for_each([&](float x, int32_t) { total += static_cast<uint64_t>(mass(scale.t(x))); });  // of -inf: 0
    total = team.reduce(total, Sum{});
    if (threadIdx.x == 0) scratch.total_mass = static_cast<int64_t>(total);
  }
  Kept kept{scale, is_filtered ? scratch.row.lowest_t() : -INFINITY};
  if (is_filtered && filter(team, source, scratch, kept, highest_of_thread)) {
    BlockTeam block(scratch.team);
    if (team.block_rank() == 0) packed_best = block.reduce(draw_kept(scratch.list, scratch.row, kept), Max{});
  } else if (is_filtered || scale.has_overflown) {
    packed_best = team.reduce(draw_kept(source, scratch.row, kept), Max{});
  }
  return {GumbelDraw::token_of(packed_best), GumbelDraw::score_of(packed_best), scale};
}

}  // namespace structout::cuda
