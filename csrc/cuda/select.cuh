// Exact selection without a sort: a radix search, three digits of an order key from the top, for the largest key such
// that what lies at or above it weighs enough. Tokens weigh 1 for top-k, and their mass for top-p; either way the sums
// are of integers, so neither the order of the atomics nor the number of blocks can change them.
#pragma once

#include <cstdint>

#include "common/sampling_math.h"
#include "cuda/compat.h"
#include "cuda/row_team.cuh"

namespace structout::cuda {

constexpr int kNumDigits = 3;  // 11, 11 and 10 bits
constexpr int kBins = 1 << 11;

// 64-bit sums of two 32-bit words each, because hardware has no 64-bit atomic addition in shared memory.
struct Histogram {
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

  __device__ void clear() {
    for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) low[bin] = high[bin] = 0;
  }
};

// Where a selection stands.
struct Selection {
  uint32_t known_bits;   // of the threshold's key: a mask ...
  uint32_t prefix;       // ... and their values; so also the lowest key that the threshold may still have
  uint64_t remaining;    // weight to be found among the keys with that prefix; 0: there is less than asked for
  uint64_t at_or_above;  // weight of all keys that are not below `prefix`, after the first digit
};

struct SelectScratch {
  Histogram histogram;
  uint64_t of_warp[kMaxWarps];
  Selection selection;  // in shared memory, because registers are short in the passes over a row
};

// The sum over the threads up to this one.
__device__ __forceinline__ uint64_t sum_up_to_thread(uint64_t value, uint64_t* of_warp) {
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    const uint64_t below = __shfl_up_sync(kWholeWarp, static_cast<unsigned long long>(value), lanes);
    if (lane_id() >= lanes) value += below;
  }
  if (lane_id() == kLanes - 1) of_warp[warp_id()] = value;
  __syncthreads();
  for (int warp = 0; warp < warp_id(); ++warp) value += of_warp[warp];
  return value;
}

// One digit, of 3. for_each_key(visit) calls visit(key, add) for what takes part; there add(bin) adds its weight to a
// bin of the histogram. At the first digit, target_of(total weight) says what is looked for.
template <class Team, class ForEachKey, class TargetOf>
__device__ void select_digit(Team& team, SelectScratch& scratch, int digit, ForEachKey for_each_key,
                             TargetOf target_of) {
  const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
  const uint32_t digit_mask = digit == 2 ? 0x3ffu : 0x7ffu;
  const uint32_t known_bits = digit == 0 ? 0 : scratch.selection.known_bits;
  const uint32_t prefix = digit == 0 ? 0 : scratch.selection.prefix;
  Histogram& histogram = scratch.histogram;

  histogram.clear();
  __syncthreads();
  for_each_key([&](uint32_t key, auto add_to_bin) {
    if ((key & known_bits) == prefix) add_to_bin(key >> shift & digit_mask);
  });
  team.sync();

  // Threads take bins from the top, each as many; the one in whose bins the target falls tells the others.
  const auto sum_of_team = [&](uint32_t bin) {
    uint64_t sum = 0;
#pragma unroll  // so that reads from other blocks overlap
    for (int rank = 0; rank < Team::kMaxBlocks; ++rank) {
      if (rank < team.num_blocks()) sum += team.of_block(&histogram, rank)->sum(bin);
    }
    return sum;
  };
  const uint32_t bins_per_thread = kBins / blockDim.x;
  const uint32_t top_bin = kBins - 1 - threadIdx.x * bins_per_thread;
  uint64_t mine = 0;
  for (uint32_t i = 0; i < bins_per_thread; ++i) mine += sum_of_team(top_bin - i);
  const uint64_t up_to_mine = sum_up_to_thread(mine, scratch.of_warp);
  if (digit == 0 && threadIdx.x == blockDim.x - 1) {
    const uint64_t target = target_of(up_to_mine);
    scratch.selection.remaining = target <= up_to_mine ? target : 0;
  }
  __syncthreads();
  const uint64_t remaining = scratch.selection.remaining;
  __syncthreads();
  if (up_to_mine - mine < remaining && remaining <= up_to_mine) {
    uint64_t above = up_to_mine - mine, in_bin = 0;
    uint32_t bin = top_bin;
    while (above + (in_bin = sum_of_team(bin)) < remaining) {
      above += in_bin;
      --bin;
    }
    scratch.selection = {known_bits | digit_mask << shift, prefix | bin << shift, remaining - above, above + in_bin};
  }
  team.sync();  // every block has read the histograms
}

}  // namespace structout::cuda
