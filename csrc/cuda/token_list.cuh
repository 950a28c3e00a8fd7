// A list of tokens in shared memory, for rows that allow few tokens.
#pragma once

#include <cmath>

#include "common/bitmask.h"
#include "cuda/row_reader.cuh"
#include "cuda/row_team.cuh"

namespace structout::cuda {

constexpr int kMaxListed = 3072;  // 24 KB; rows that allow more tokens are read in place

// One block's list. The thread that lists a token need not be the one that visits it.
struct TokenList {
  static constexpr int kKeyZeroBits = 0;  // see RowReader

  float x[kMaxListed];
  int32_t ids[kMaxListed];
  unsigned size;

  // The highest logit, NaN if one of them is.
  class Survey {
   public:
    __device__ void add(float x) { highest_ = max_or_nan(highest_, x); }
    __device__ float highest() const { return highest_; }

   private:
    float highest_ = -INFINITY;
  };

  // Surveys this thread's tokens.
  __device__ Survey survey() const {
    Survey survey;
    for_each([&](float x, int32_t) { survey.add(x); });
    return survey;
  }

  template <class Visit>
  __device__ void for_each(Visit visit) const {
    for (unsigned i = threadIdx.x; i < size; i += blockDim.x) visit(x[i], ids[i]);
  }
  template <class Visit>
  __device__ void for_each_from(uint32_t, Visit visit) const {
    for_each(visit);
  }
};

// Reads the logits of the listed tokens, several at a time.
template <class Reader>
__device__ __forceinline__ void load_listed(TokenList& list, const Reader& reader) {
  constexpr int kInFlight = 3;
  const unsigned size = list.size;
  for (unsigned first = threadIdx.x; first < size; first += kInFlight * blockDim.x) {
    float x[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const unsigned i = first + k * blockDim.x;
      x[k] = i < size ? reader.logit(list.ids[i]) : 0;
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const unsigned i = first + k * blockDim.x;
      if (i < size) list.x[i] = x[k];
    }
  }
}

// Places of a list for the tokens of a warp, one after another.
struct Places {
  unsigned first;  // of this lane
  unsigned end;    // of the warp; beyond kMaxListed they do not fit
};

// Takes places for `count` tokens of each lane.
__device__ __forceinline__ Places take_places(TokenList& list, unsigned count) {
  unsigned inclusive_count = count;
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    const unsigned below = __shfl_up_sync(kWholeWarp, inclusive_count, lanes);
    if (lane_id() >= lanes) inclusive_count += below;
  }
  unsigned begin = 0;
  if (lane_id() == kLanes - 1) begin = atomicAdd(&list.size, inclusive_count);
  begin = __shfl_sync(kWholeWarp, begin, kLanes - 1);
  const unsigned count_of_warp = __shfl_sync(kWholeWarp, inclusive_count, kLanes - 1);
  return {begin + inclusive_count - count, begin + count_of_warp};
}

// Lists in the team's first block the tokens of which is_wanted(logit) is true. It must
// be true of every logit above one that is wanted. Returns false if they do not fit.
// Needs a team.sync() since the list was last used.
template <class Team, class Reader, class IsWanted>
__device__ __forceinline__ bool list_if(Team& team, const Reader& reader, TokenList& block_list, IsWanted is_wanted) {
  TokenList& list = *team.in_block(&block_list, 0);
  if (team.block_rank() == 0 && threadIdx.x == 0) list.size = 0;
  team.sync();
  bool is_full = false;
  reader.for_each_vector([&](const typename Reader::V& vector, int32_t first) {
    const float highest = vector.highest();
    if (is_full || !__any_sync(kWholeWarp, is_wanted(highest) || highest != highest)) return;
    uint32_t wanted = 0;
#pragma unroll
    for (int i = 0; i < Reader::V::kTokens; ++i) wanted |= is_wanted(vector.at(i)) ? 1u << i : 0;
    const Places places = take_places(list, __popc(wanted));
    is_full = places.end > kMaxListed;
    if (is_full) return;
    for (unsigned place = places.first; wanted != 0; wanted &= wanted - 1, ++place) {
      const int i = __ffs(static_cast<int>(wanted)) - 1;
      list.x[place] = vector.select(i);
      list.ids[place] = first + i;
    }
  });
  team.sync();
  return list.size <= kMaxListed;
}

// Reads the mask of the tokens in [begin, end), 16 bytes per thread at a time, several
// of them in a round.
class MaskReader {
 public:
  static constexpr int kLoads = 4;

  // Loads the first round.
  __device__ MaskReader(const MaskRow& mask, int64_t begin, int64_t end)
      : words_(mask.words),
        begin_(static_cast<int32_t>(begin)),
        end_(static_cast<int32_t>(end)),
        num_words_(static_cast<int32_t>(mask.words_within(end))),
        is_aligned_(is_16_byte_aligned(mask.words)),
        round_(begin_ / kTokensPerLoad * kWordsPerLoad) {
    load();
  }

  __device__ bool has_round() const { return round_ < num_words_; }
  __device__ void next_round() {
    round_ += kLoads * kWordsPerLoad * static_cast<int32_t>(blockDim.x);
    load();
  }

  // The number of this thread's tokens in the round.
  __device__ unsigned count() const {
    unsigned count = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (any(i) != 0) count += __popc(four_[i].x) + __popc(four_[i].y) + __popc(four_[i].z) + __popc(four_[i].w);
    }
    return count;
  }

  // Calls visit(token) for them.
  template <class Visit>
  __device__ void for_each(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (any(i) == 0) continue;
      const int32_t first = first_word(i) * kBits;
      for_each_bit(four_[i].x, first, visit);
      for_each_bit(four_[i].y, first + kBits, visit);
      for_each_bit(four_[i].z, first + 2 * kBits, visit);
      for_each_bit(four_[i].w, first + 3 * kBits, visit);
    }
  }

 private:
  static constexpr int32_t kBits = static_cast<int32_t>(kBitsPerWord);
  static constexpr int32_t kWordsPerLoad = 4, kTokensPerLoad = kWordsPerLoad * kBits;

  template <class Visit>
  __device__ static void for_each_bit(uint32_t bits, int32_t first, Visit visit) {
    for (; bits != 0; bits &= bits - 1) visit(first + __ffs(static_cast<int>(bits)) - 1);
  }

  __device__ uint32_t any(int i) const { return four_[i].x | four_[i].y | four_[i].z | four_[i].w; }
  __device__ int32_t first_word(int i) const {
    return round_ + (i * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x)) * kWordsPerLoad;
  }

  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t word = first_word(i);
      four_[i] = make_uint4(0, 0, 0, 0);
      if (word >= num_words_) continue;
      if (is_aligned_ && word * kBits >= begin_ && (word + kWordsPerLoad) * kBits <= end_ &&
          word + kWordsPerLoad <= num_words_) {
        four_[i] = __ldg(reinterpret_cast<const uint4*>(words_ + word));
      } else {
        const bool is_first = i == 0;
        four_[i] = make_uint4(word_within(word, is_first), word_within(word + 1, is_first),
                              word_within(word + 2, is_first), word_within(word + 3, is_first));
      }
    }
  }

  // A word without the bits of tokens outside [begin, end). Only a thread's first load can
  // hold words that begin before.
  __device__ uint32_t word_within(int32_t i, bool is_first) const {
    if (i >= num_words_) return 0;
    const int32_t first = i * kBits, left = end_ - first;  // above 0, because num_words_ ends at end_
    uint32_t bits = words_[i];
    if (is_first && first < begin_) bits = begin_ - first < kBits ? bits & kAllAllowed << (begin_ - first) : 0;
    return left >= kBits ? bits : bits & ((1u << left) - 1);
  }

  const uint32_t* words_;
  int32_t begin_, end_, num_words_;
  bool is_aligned_;
  int32_t round_;
  uint4 four_[kLoads];
};

// Lists the allowed tokens, and returns their number. If they do not fit in the list, it
// stops there and returns a number above kMaxListed. The order of the list is not
// deterministic, and no result depends on it. Needs list.size = 0 and a barrier.
__device__ __forceinline__ unsigned list_allowed(TokenList& list, MaskReader& mask) {
  for (; mask.has_round(); mask.next_round()) {
    const unsigned count = mask.count();
    if (!__any_sync(kWholeWarp, count != 0)) continue;
    Places places = take_places(list, count);
    if (places.end > kMaxListed) break;
    mask.for_each([&](int32_t token) { list.ids[places.first++] = token; });
  }
  __syncthreads();
  return list.size;
}

}  // namespace structout::cuda
