// Exact selection without a sort: a radix search for the largest order key such that the
// tokens at or above it have the target weight. Each digit divides the keys that are left
// into 2,048 bins, the first of them those from the lowest to the highest: tokens that
// fell into few bins would wait for each other's atomics. A token's weight is 1 for top-k
// and its mass for top-p. Both are integers, so neither the order of the atomics nor the
// number of blocks can change a sum.
#pragma once

#include <cstdint>

#include "common/sampling_math.h"
#include "cuda/compat.h"
#include "cuda/row_team.cuh"

namespace structout::cuda {

constexpr int kBins = 1 << 11;
static_assert(kBins / kMaxThreads % 4 == 0);

// 64-bit sums as two 32-bit words each, because the hardware has no 64-bit atomic
// addition in shared memory.
struct alignas(16) Histogram {
  unsigned low[kBins], high[kBins];

  __device__ void count(uint32_t bin) { atomicAdd(&low[bin], 1u); }

  __device__ void add(uint32_t bin, int64_t weight) {
    const uint32_t low_part = static_cast<uint32_t>(weight);
    const uint32_t old = atomicAdd(&low[bin], low_part);
    const uint32_t carry = old + low_part < old ? 1 : 0;
    const uint32_t high_part = static_cast<uint32_t>(static_cast<uint64_t>(weight) >> 32) + carry;
    if (high_part != 0) atomicAdd(&high[bin], high_part);
  }

  __device__ uint64_t sum(uint32_t bin) const { return uint64_t{high[bin]} << 32 | low[bin]; }

  // The sum of four bins, the first of which is a multiple of four: two loads, without
  // conflicts of threads that read side by side.
  __device__ uint64_t sum_of_four(uint32_t bin) const {
    const uint4 lows = *reinterpret_cast<const uint4*>(low + bin), highs = *reinterpret_cast<const uint4*>(high + bin);
    const uint64_t sum_of_lows = uint64_t{lows.x} + lows.y + lows.z + lows.w;
    return (uint64_t{highs.x + highs.y + highs.z + highs.w} << 32) + sum_of_lows;
  }

  __device__ void clear() {
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    for (unsigned bin = 4 * threadIdx.x; bin < kBins; bin += 4 * blockDim.x) {
      *reinterpret_cast<uint4*>(low + bin) = *reinterpret_cast<uint4*>(high + bin) = zeros;
    }
  }
};

// Divides the keys from `lowest` to `highest` into at most kBins bins of 2^shift keys, the
// first of which may begin below.
struct Digit {
  uint32_t first, num_bins;
  int shift;

  __device__ Digit(uint32_t lowest, uint32_t highest) : shift(0) {
    while ((highest >> shift) - (lowest >> shift) >= kBins) ++shift;
    first = lowest >> shift;
    num_bins = (highest >> shift) - first + 1;
  }

  // num_bins or more for a key in no bin.
  __device__ uint32_t bin_of(uint32_t key) const { return (key >> shift) - first; }
  __device__ uint32_t lowest_key(uint32_t bin) const { return (first + bin) << shift; }
};

// The state of a selection between two digits: the threshold is one of the keys from
// lowest_key to highest_key.
struct Selection {
  uint32_t lowest_key, highest_key;
  uint64_t remaining;    // target weight among these keys; 0: the total is less than the target
  uint64_t at_or_above;  // after the first digit, the weight of all keys that are not below lowest_key
};

struct SelectScratch {
  Histogram histogram;
  uint64_t warp_sums[kMaxWarps];
  Selection selection;  // in shared memory, because the passes over a row need the registers
};

// The inclusive prefix sum over the threads of the block.
__device__ __forceinline__ uint64_t inclusive_sum(uint64_t value, uint64_t* warp_sums) {
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    const uint64_t below = __shfl_up_sync(kWholeWarp, static_cast<unsigned long long>(value), lanes);
    if (lane_id() >= lanes) value += below;
  }
  if (lane_id() == kLanes - 1) warp_sums[warp_id()] = value;
  __syncthreads();
  return value + Sum{}.of_warp(lane_id() < warp_id() ? warp_sums[lane_id()] : 0);
}

// Selects one digit. for_each_key(visit) must call visit(key, add) for every token that
// takes part, where add(bin) adds the token's weight to a bin of the histogram. At the
// first digit, target_of(total weight) returns the target weight.
template <class Team, class ForEachKey, class TargetOf>
__device__ __forceinline__ void select_digit(Team& team, SelectScratch& scratch, const Digit& digit, bool is_first,
                                             ForEachKey for_each_key, TargetOf target_of) {
  Histogram& histogram = scratch.histogram;
  histogram.clear();
  __syncthreads();
  for_each_key([&](uint32_t key, auto add_to_bin) {
    const uint32_t bin = digit.bin_of(key);
    if (bin < digit.num_bins) add_to_bin(bin);
  });
  team.sync();

  // Each thread takes the same number of bins, from the top. The thread whose bins
  // contain the target writes the selection for the others.
  const auto team_sum = [&](auto sum_of) {
    uint64_t sum = 0;
#pragma unroll  // overlaps the reads from other blocks
    for (int rank = 0; rank < Team::kMaxBlocks; ++rank) {
      // The compiler maps the address above the condition. The PTX ISA (9.0) says of mapa's
      // operand b only that it represents "the rank of the target CTA", so no other value
      // may get there. The number of blocks is a power of two.
      const int valid_rank = rank & (team.num_blocks() - 1);
      if (rank < team.num_blocks()) sum += sum_of(*team.in_block(&histogram, valid_rank));
    }
    return sum;
  };
  const uint32_t bins_per_thread = kBins / blockDim.x;  // a multiple of four
  const uint32_t top_bin = kBins - 1 - threadIdx.x * bins_per_thread;
  uint64_t thread_sum = 0;
#pragma unroll 1
  for (uint32_t i = 3; i < bins_per_thread; i += 4) {
    thread_sum += team_sum([&](const Histogram& block) { return block.sum_of_four(top_bin - i); });
  }
  const uint64_t sum_to_thread = inclusive_sum(thread_sum, scratch.warp_sums);
  if (is_first && threadIdx.x == blockDim.x - 1) {
    const uint64_t target = target_of(sum_to_thread);
    scratch.selection.remaining = target <= sum_to_thread ? target : 0;
  }
  __syncthreads();
  const uint64_t remaining = scratch.selection.remaining;
  __syncthreads();
  if (sum_to_thread - thread_sum < remaining && remaining <= sum_to_thread) {
    uint64_t above = sum_to_thread - thread_sum, in_bin = 0;
    uint32_t bin = top_bin;
    const auto sum_of_bin = [&](const Histogram& block) { return block.sum(bin); };
    while (above + (in_bin = team_sum(sum_of_bin)) < remaining) {
      above += in_bin;
      --bin;
    }
    const uint32_t lowest_key = digit.lowest_key(bin), highest_key = digit.lowest_key(bin + 1) - 1;
    scratch.selection = {lowest_key, highest_key, remaining - above, above + in_bin};
  }
  team.sync();  // every block has read the histograms
}

}  // namespace structout::cuda
