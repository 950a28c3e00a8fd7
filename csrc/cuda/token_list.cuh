// A list of tokens in shared memory, for rows that allow few tokens.
#pragma once

#include "common/bitmask.h"
#include "cuda/row_team.cuh"

namespace structout::cuda {

constexpr int kMaxListed = 3072;  // 24 KB; rows that allow more tokens are read in place

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

// Reads the logits of the listed tokens.
template <class Reader>
__device__ __forceinline__ void load_listed(TokenList& list, const Reader& reader) {
  for (unsigned i = threadIdx.x; i < list.size; i += blockDim.x) list.x[i] = reader.logit(list.ids[i]);
}

// Lists the reader's tokens of which is_wanted(logit) is true. Returns false if they do
// not fit in the list of every block of the team.
template <class Team, class Reader, class IsWanted>
__device__ bool list_if(Team& team, Reader& reader, TokenList& list, IsWanted is_wanted) {
  __syncthreads();
  if (threadIdx.x == 0) list.size = 0;
  __syncthreads();
  bool is_full = false;
  reader.for_each([&](float x, int32_t token) {
    if (is_full || !is_wanted(x)) return;
    const unsigned i = atomicAdd(&list.size, 1u);
    is_full = i >= kMaxListed;
    if (is_full) return;
    list.x[i] = x;
    list.ids[i] = token;
  });
  return team.reduce(is_full ? 1 : 0, Max{}) == 0;
}

constexpr int kWordsPerLoad = 4, kLoadsInFlight = 4;

// `word`, word `index` of a mask, without the bits of tokens outside [begin, end).
__device__ __forceinline__ uint32_t bits_within(uint32_t word, int64_t index, int64_t begin, int64_t end) {
  const int64_t first = index * kBitsPerWord, left = end - first;
  if (first < begin) word = begin - first < kBitsPerWord ? word & kAllAllowed << (begin - first) : 0;
  return left >= kBitsPerWord ? word : left <= 0 ? 0 : word & ((1u << left) - 1);
}

// Lists the tokens in [begin, end) that `mask` allows, and returns their number. If
// they do not fit in the list, it stops there and returns a number above kMaxListed.
// The order of the list is not deterministic, and no result depends on it.
__device__ __forceinline__ unsigned list_allowed(TokenList& list, const MaskRow& mask, int64_t begin, int64_t end) {
  if (threadIdx.x == 0) list.size = 0;
  __syncthreads();
  const int64_t num_words = mask.words_within(end);
  const bool is_aligned = is_16_byte_aligned(mask.words);
  const int64_t words_per_round = int64_t{kWordsPerLoad} * kLoadsInFlight * blockDim.x;
  for (int64_t round = begin / (kBitsPerWord * kWordsPerLoad) * kWordsPerLoad; round < num_words;
       round += words_per_round) {
    uint32_t words[kLoadsInFlight][kWordsPerLoad];
    unsigned count = 0;
#pragma unroll
    for (int load = 0; load < kLoadsInFlight; ++load) {
      const int64_t first = round + (int64_t{load} * blockDim.x + threadIdx.x) * kWordsPerLoad;
      if (is_aligned && first + kWordsPerLoad <= num_words) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(mask.words + first));
        words[load][0] = four.x;
        words[load][1] = four.y;
        words[load][2] = four.z;
        words[load][3] = four.w;
      } else {
#pragma unroll
        for (int i = 0; i < kWordsPerLoad; ++i) words[load][i] = first + i < num_words ? mask.words[first + i] : 0;
      }
#pragma unroll
      for (int i = 0; i < kWordsPerLoad; ++i) {
        words[load][i] = bits_within(words[load][i], first + i, begin, end);
        count += __popc(words[load][i]);
      }
    }
    unsigned inclusive_count = count;
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      const unsigned below = __shfl_up_sync(kWholeWarp, inclusive_count, lanes);
      if (lane_id() >= lanes) inclusive_count += below;
    }
    unsigned place = 0;
    if (lane_id() == kLanes - 1) place = atomicAdd(&list.size, inclusive_count);
    place = __shfl_sync(kWholeWarp, place, kLanes - 1);
    const unsigned end_of_warp = place + __shfl_sync(kWholeWarp, inclusive_count, kLanes - 1);
    if (end_of_warp > kMaxListed) break;
    place += inclusive_count - count;
#pragma unroll
    for (int load = 0; load < kLoadsInFlight; ++load) {
#pragma unroll
      for (int i = 0; i < kWordsPerLoad; ++i) {
        const int64_t index = round + (int64_t{load} * blockDim.x + threadIdx.x) * kWordsPerLoad + i;
        for (uint32_t bits = words[load][i]; bits != 0; bits &= bits - 1) {
          list.ids[place++] = static_cast<int32_t>(index * kBitsPerWord) + __ffs(static_cast<int>(bits)) - 1;
        }
      }
    }
  }
  __syncthreads();
  return list.size;
}

}  // namespace structout::cuda
