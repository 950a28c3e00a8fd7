// The filters top_k and top_p. Each is a radix selection over the row. As soon as what
// is left fits in a list, the selection goes on over the list.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/gumbel_draw.cuh"
#include "cuda/select.cuh"

namespace structout::cuda {

enum class FilterStage { kTopK, kTopP, kDone };

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
    const bool is_count = stage == FilterStage::kTopK;
    return static_cast<uint64_t>(is_count ? scratch.row.top_k : scratch.row.top_p_target(static_cast<int64_t>(total)));
  };
  select_digit(team, scratch.select, digit, for_each_key, target_of);
}

// Applies the filters, starting at the given stage and digit, and draws. Returns this
// thread's packed best. Continues over a list as soon as the tokens that may be kept
// fit in one.
template <class Team, class Source>
__device__ uint64_t draw_filtered(Team& team, Source& source, RowScratch& scratch, Kept kept, FilterStage stage,
                                  int digit) {
  const Selection& selection = scratch.select.selection;
  for (; stage != FilterStage::kDone; digit = 0) {
    const bool is_on = stage == FilterStage::kTopK ? scratch.row.has_top_k() : scratch.row.has_top_p();
    while (is_on && digit < kNumDigits) {
      select_digit(team, source, scratch, kept, stage, digit++);
      if (selection.remaining == 0) break;
      if constexpr (!std::is_same_v<Source, TokenList>) {
        const uint64_t room = uint64_t{kMaxListed} * static_cast<uint64_t>(team.num_blocks());
        const bool may_fit = stage == FilterStage::kTopP || selection.at_or_above <= room;
        const auto is_candidate = [&, lowest_key = selection.prefix](float x) {
          return order_key(x) >= lowest_key && kept.holds(x);
        };
        if (digit == 1 && may_fit && list_if(team, source, scratch.list, is_candidate)) {
          return draw_filtered(team, scratch.list, scratch, kept, stage, digit);
        }
      }
    }
    if (is_on && selection.remaining != 0 && selection.prefix > kept.lowest_key) kept.lowest_key = selection.prefix;
    stage = stage == FilterStage::kTopK ? FilterStage::kTopP : FilterStage::kDone;
  }
  return draw_kept(source, scratch, kept);
}

}  // namespace structout::cuda
