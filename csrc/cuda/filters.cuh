// The filters top_k and top_p.
//
// A row in memory is first reduced to the tokens that reach a lower bound of the threshold.
// top_k takes the bound from the threads' highest logits: if k of them reach a value, at
// least k tokens do. top_p takes it from the mass above a few cuts, which one pass sums
// together with the total. The tokens that reach the bound usually fit in a list, which
// the first block of the team sorts. Otherwise a radix selection over these tokens finds a
// digit of the threshold at a time, until they fit.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/gumbel_draw.cuh"
#include "cuda/select.cuh"
#include "cuda/sort.cuh"

namespace structout::cuda {

__device__ __forceinline__ uint32_t max_key(uint32_t a, uint32_t b) { return a > b ? a : b; }

// The mass that top_p has to reach, where `total` is what the other filters leave of the
// tokens at hand. They may be a part of the row if the target is known.
__device__ __forceinline__ uint64_t top_p_target(const RowScratch& scratch, uint64_t total) {
  if (scratch.top_p_target != 0) return scratch.top_p_target;
  return static_cast<uint64_t>(scratch.row.top_p_target(static_cast<int64_t>(total)));
}

__device__ __forceinline__ uint64_t mass_of_kept(const Kept& kept, float x) {
  return kept.holds(x) ? static_cast<uint64_t>(mass(kept.scale.t(x))) : 0;
}

// Selects a digit of the threshold of top_k or top_p among the source's tokens.
template <bool kIsTopK, class Team, class Source>
__device__ __forceinline__ void select_digit_of(Team& team, Source& source, RowScratch& scratch, const Kept& kept,
                                                const Digit& digit, bool is_first) {
  Histogram& histogram = scratch.select.histogram;
  const auto for_each_key = [&](auto visit) {
    source.for_each_from(max_key(kept.lowest_key, digit.lowest_key(0)), [&](float x, int32_t) {
      if (!kept.holds(x)) return;
      visit(order_key(x), [&](uint32_t bin) {
        if (kIsTopK) {
          histogram.count(bin);
        } else if (const int64_t weight = mass(kept.scale.t(x)); weight != 0) {
          histogram.add(bin, weight);
        }
      });
    });
  };
  const auto target_of = [&](uint64_t total) {
    if (kIsTopK) return static_cast<uint64_t>(scratch.row.top_k);
    return scratch.top_p_target = top_p_target(scratch, total);
  };
  select_digit(team, scratch.select, digit, is_first, for_each_key, target_of);
}

// Raises kept.lowest_key to the threshold of top_k or top_p among the source's tokens,
// whose keys end in kZeroBits bits that tell nothing. Stops after the first digit if
// after_first_digit() returns true, and returns whether it did.
template <bool kIsTopK, int kZeroBits, class Team, class Source, class AfterFirstDigit>
__device__ __forceinline__ bool select_threshold(Team& team, Source& source, RowScratch& scratch, Kept& kept,
                                                 AfterFirstDigit after_first_digit) {
  const Selection& selection = scratch.select.selection;
  Digit digit(kept.lowest_key, order_key(kept.scale.highest));
  for (bool is_first = true;; is_first = false) {
    select_digit_of<kIsTopK>(team, source, scratch, kept, digit, is_first);
    if (selection.remaining == 0) return false;  // fewer tokens than top_k
    if (is_first && after_first_digit()) return true;
    if (digit.shift <= kZeroBits) break;
    digit = Digit(selection.lowest_key, selection.highest_key);
  }
  kept.lowest_key = max_key(kept.lowest_key, selection.lowest_key);
  return false;
}

// Applies the filters to a block's list, one token per thread.
__device__ __forceinline__ void filter_by_sorting(const TokenList& list, RowScratch& scratch, Kept& kept) {
  Selection& selection = scratch.select.selection;
  const bool has_token = threadIdx.x < list.size && kept.holds(list.x[threadIdx.x]);
  const uint32_t key =
      sort_descending(has_token ? order_key(list.x[threadIdx.x]) : 0, list.size, scratch.select.histogram.low);
  if (scratch.row.has_top_k() && scratch.row.top_k <= blockDim.x) {
    if (threadIdx.x + 1 == scratch.row.top_k) selection.lowest_key = key;
    __syncthreads();
    kept.lowest_key = max_key(kept.lowest_key, selection.lowest_key);
  }
  if (scratch.row.has_top_p()) {
    const uint64_t weight = mass_of_kept(kept, float_of_order_key(key));
    const uint64_t sum = inclusive_sum(weight, scratch.select.warp_sums);
    if (threadIdx.x == blockDim.x - 1) selection.remaining = top_p_target(scratch, sum);
    __syncthreads();
    if (sum - weight < selection.remaining && selection.remaining <= sum) selection.lowest_key = key;
    __syncthreads();
    kept.lowest_key = max_key(kept.lowest_key, selection.lowest_key);
  }
}

// Applies the filters to a block's list.
template <int kZeroBits>
__device__ __forceinline__ void filter_list(TokenList& list, RowScratch& scratch, Kept& kept) {
  if (list.size <= blockDim.x) return filter_by_sorting(list, scratch, kept);
  BlockTeam block(scratch.team);
  const auto never = [] { return false; };
  if (scratch.row.has_top_k()) select_threshold<true, kZeroBits>(block, list, scratch, kept, never);
  if (scratch.row.has_top_p()) select_threshold<false, kZeroBits>(block, list, scratch, kept, never);
}

// A lower bound of the keys that top_k keeps of a row, from the highest logits of this
// block's threads. 0: none.
__device__ __forceinline__ uint32_t top_k_bound(RowScratch& scratch, const Kept& kept, float highest_of_thread) {
  Selection& selection = scratch.select.selection;
  const uint32_t key = sort_descending(kept.holds(highest_of_thread) ? order_key(highest_of_thread) : 0, blockDim.x,
                                       scratch.select.histogram.low);
  if (threadIdx.x == 0) selection.lowest_key = 0;
  __syncthreads();
  if (threadIdx.x + 1 == scratch.row.top_k) selection.lowest_key = key;
  __syncthreads();
  return selection.lowest_key;
}

// Rows are cut for top_p where tokens have 2^-3, 2^-6 ... of the highest token's mass. The
// mass above a cut is summed in 32 bits for each thread, in units of 2^23. Each token is
// rounded down, so the true mass is at least as high.
constexpr int kNumCuts = 5, kCutDistance = 3, kCutShift = 23;
constexpr uint64_t kHighestWeight = static_cast<uint64_t>(kMassScale) >> kCutShift;
static_assert(kHighestWeight * (kMaxSampledVocab / kMaxThreads + 16) <= ~uint32_t{0});

__device__ __forceinline__ constexpr uint32_t weight_of_cut(int cut) {
  return static_cast<uint32_t>(kHighestWeight >> kCutDistance * (cut + 1));
}
// A lower bound of the t of tokens above a cut: 0.7 is more than ln 2.
__device__ __forceinline__ float t_of_cut(int cut) { return static_cast<float>(cut + 1) * (-0.7f * kCutDistance); }

// A lower bound of the keys of all tokens whose t is at least `cut`. The slack is several
// times what rounding may add to t. 0: none. The scale must not have overflown.
__device__ __forceinline__ uint32_t key_of_cut(const Scale& scale, float cut) {
  const float slack = (fabsf(scale.z_of_highest) - cut) * 0x1p-20f;
  const float x = (scale.z_of_highest + cut - slack) / scale.inverse;
  return fabsf(x) <= FLT_MAX ? order_key(x) : 0;
}

// Raises kept.lowest_key to that of the highest cut above which top_p finds enough mass,
// and sets scratch.top_p_target. Only min_p has filtered the row so far, so all tokens
// that it keeps take part: -inf has no mass.
template <class Team, class Reader>
__device__ __forceinline__ void cut_for_top_p(Team& team, const Reader& reader, RowScratch& scratch, Kept& kept) {
  const Scale& scale = kept.scale;
  if (scale.has_overflown) return;  // only the highest logits have mass
  const float lowest_t = fmaxf(kept.lowest_t, kNoMassBelow);
  uint64_t total = 0;
  uint32_t above[kNumCuts] = {};
  reader.for_each_vector([&](const typename Reader::V& vector, int32_t) {
    if (!__any_sync(kWholeWarp, scale.finite_t(vector.highest()) >= lowest_t)) return;
#pragma unroll
    for (int i = 0; i < Reader::V::kTokens; ++i) {
      const float t = scale.finite_t(vector.at(i));
      const auto weight = static_cast<uint64_t>(mass(t >= lowest_t ? t : -INFINITY));  // without a branch
      const auto rounded = static_cast<uint32_t>(weight >> kCutShift);
      total += weight;
#pragma unroll
      for (int cut = 0; cut < kNumCuts; ++cut) {
        if (rounded >= weight_of_cut(cut)) above[cut] += rounded;
      }
    }
  });
  Values<1 + kNumCuts> sums{{total}};
#pragma unroll
  for (int cut = 0; cut < kNumCuts; ++cut) sums.at[1 + cut] = above[cut];
  sums = team.reduce(sums, Sum{});
  const uint64_t target = static_cast<uint64_t>(scratch.row.top_p_target(static_cast<int64_t>(sums.at[0])));
  if (threadIdx.x == 0) scratch.top_p_target = target;
  int chosen = kNumCuts;
#pragma unroll
  for (int cut = kNumCuts - 1; cut >= 0; --cut) {
    if (sums.at[1 + cut] << kCutShift >= target) chosen = cut;
  }
  if (chosen < kNumCuts) kept.lowest_key = max_key(kept.lowest_key, key_of_cut(scale, t_of_cut(chosen)));
}

// Applies the filters to a row, as far as needed until the tokens that they may keep fit
// in the first block's list. Returns whether they are listed.
template <class Team, class Reader>
__device__ __forceinline__ bool filter_row(Team& team, const Reader& reader, RowScratch& scratch, Kept& kept,
                                           float highest_of_thread) {
  const Selection& selection = scratch.select.selection;
  const auto list_down_to = [&](uint32_t lowest_key) {
    Kept listed = kept;
    listed.lowest_key = max_key(kept.lowest_key, lowest_key);
    return list_if(team, reader, scratch.list, [&](float x) { return listed.holds(x); });
  };
  if (!scratch.row.has_top_k()) {
    if (scratch.row.has_top_p()) cut_for_top_p(team, reader, scratch, kept);
  } else if (scratch.row.top_k <= blockDim.x) {
    const uint64_t bound = top_k_bound(scratch, kept, highest_of_thread);
    kept.lowest_key = max_key(kept.lowest_key, static_cast<uint32_t>(team.reduce(bound, Max{})));
  }
  if ((kept.lowest_key > kLowestDrawableKey || scratch.row.has_min_p()) && list_down_to(0)) return true;

  const auto list_rest = [&] { return list_down_to(selection.lowest_key); };
  if (scratch.row.has_top_k()) {
    const auto list_if_few = [&] { return selection.at_or_above <= kMaxListed && list_rest(); };
    if (select_threshold<true, Reader::kKeyZeroBits>(team, reader, scratch, kept, list_if_few)) return true;
  }
  return scratch.row.has_top_p() &&
         select_threshold<false, Reader::kKeyZeroBits>(team, reader, scratch, kept, list_rest);
}

// Raises kept.lowest_key to what the filters keep of the source. Returns whether those
// tokens are in the list of the team's first block; if so, only that block knows them.
template <class Team, class Source>
__device__ __forceinline__ bool filter(Team& team, Source& source, RowScratch& scratch, Kept& kept,
                                       float highest_of_thread) {
  if constexpr (!std::is_same_v<Source, TokenList>) {
    if (!filter_row(team, source, scratch, kept, highest_of_thread)) return false;
  }
  if (team.block_rank() == 0) filter_list<Source::kKeyZeroBits>(scratch.list, scratch, kept);
  return true;
}

}  // namespace structout::cuda
