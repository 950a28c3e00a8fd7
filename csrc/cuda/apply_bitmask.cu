// logits[n, v] = -inf where bit v of bitmask[rows[n]] is 0.
//
// One warp owns a tile of 4,096 tokens of one row: 32 lanes x 16 bytes of mask, loaded
// coalesced, a row ahead. Groups of 128 tokens, whose mask one lane holds, are filled
// with 16 bytes per lane if they are fully disallowed. In a group with few disallowed
// tokens its lane stores -inf to each of them. For other groups the warp gets the words
// by shuffles, and its lanes store to tokens that lie side by side.
//
// Bytes moved per row: V/8 of mask, and the logit of each disallowed token once. Logits
// are never read.
//
// Launch: blocks of 2 warps. grid.x covers a row and grid.y strides over the rows, so
// no thread needs a division. grid.y is such that all blocks run at a time and have the
// same number of rows, give or take one.
#include <algorithm>

#include "cuda/apply_bitmask.h"
#include "cuda/compat.h"

namespace structout::cuda {
namespace {

constexpr int kWarps = 2;            // small blocks spread a single row over many SMs
constexpr int kBlocksPerSm = 24;     // 48 warps an SM: enough 512-byte mask loads in flight to cover their latency
constexpr int kMaxGridRows = 65535;  // CUDA's limit on gridDim.y

constexpr int kWordsPerGroup = 4;  // what one lane loads
constexpr int kTokensPerGroup = kWordsPerGroup * kBitsPerWord;
constexpr int kTokensPerTile = kLanes * kTokensPerGroup;
constexpr int kWordsPerTile = kLanes * kWordsPerGroup;
constexpr int kFewDisallowed = 6;  // in a group: its lane stores to them alone, in fewer instructions

// Bits past the last column read as allowed, so that nothing is stored there.
__device__ __forceinline__ uint32_t allow_past_end(uint32_t word, int64_t first_token, int64_t vocab_size) {
  const int64_t left = vocab_size - first_token;
  if (left >= kBitsPerWord) return word;
  return left <= 0 ? kAllAllowed : word | kAllAllowed << left;
}

// The lane's words of a tile. A row that is free allows everything.
__device__ __forceinline__ uint4 load_group(const ApplyBitmaskParams& params, int64_t row, int64_t tile, int lane) {
  const MaskRow mask = mask_row(params.bitmask, params.rows, row);
  if (mask.is_free) return make_uint4(kAllAllowed, kAllAllowed, kAllAllowed, kAllAllowed);
  const int64_t first = tile * kWordsPerTile + lane * kWordsPerGroup, token = first * kBitsPerWord;
  const bool is_whole = (tile + 1) * kWordsPerTile <= mask.num_words && is_16_byte_aligned(mask.words);
  uint4 words;
  if (is_whole) {
    words = __ldg(reinterpret_cast<const uint4*>(mask.words + first));
  } else {
    words = make_uint4(mask.word(first), mask.word(first + 1), mask.word(first + 2), mask.word(first + 3));
  }
  if ((tile + 1) * kTokensPerTile > params.vocab_size) {
    words.x = allow_past_end(words.x, token, params.vocab_size);
    words.y = allow_past_end(words.y, token + kBitsPerWord, params.vocab_size);
    words.z = allow_past_end(words.z, token + 2 * kBitsPerWord, params.vocab_size);
    words.w = allow_past_end(words.w, token + 3 * kBitsPerWord, params.vocab_size);
  }
  return words;
}

template <class T>
__device__ __forceinline__ void mask_word(T* logits, uint32_t allowed, T neg_inf) {
  for (uint32_t bits = ~allowed; bits != 0; bits &= bits - 1) {
    logits[__ffs(static_cast<int>(bits)) - 1] = neg_inf;
  }
}

template <class T, bool kIsAligned>
__device__ __forceinline__ void mask_tile(T* logits, const uint4& lane_words, T neg_inf, int lane) {
  constexpr int kTokensPerStore = 16 / sizeof(T), kTokensPerStep = kLanes * kTokensPerStore;
  constexpr int kGroupsPerStep = kTokensPerStep / kTokensPerGroup;
  constexpr uint32_t kStepGroups = (1u << kGroupsPerStep) - 1;
  const uint32_t fill = sizeof(T) == 4 ? neg_inf : neg_inf * 0x10001u;
  const uint4 fill_16_bytes = make_uint4(fill, fill, fill, fill);

  const int num_allowed = __popc(lane_words.x) + __popc(lane_words.y) + __popc(lane_words.z) + __popc(lane_words.w);
  const uint32_t empty_groups = kIsAligned ? __ballot_sync(kWholeWarp, num_allowed == 0) : 0;
  T* const first = logits + lane * kTokensPerStore;
  if (empty_groups == kWholeWarp) {
#pragma unroll 4
    for (int step = 0; step < kTokensPerTile / kTokensPerStep; ++step) {
      store_16_bytes(first + step * kTokensPerStep, fill_16_bytes);
    }
    return;
  }
  const bool has_few = num_allowed >= kTokensPerGroup - kFewDisallowed;
  if (has_few && num_allowed < kTokensPerGroup) {
    T* group = logits + lane * kTokensPerGroup;
    mask_word(group, lane_words.x, neg_inf);
    mask_word(group + kBitsPerWord, lane_words.y, neg_inf);
    mask_word(group + 2 * kBitsPerWord, lane_words.z, neg_inf);
    mask_word(group + 3 * kBitsPerWord, lane_words.w, neg_inf);
  }
  const uint32_t lane_group = static_cast<uint32_t>(lane * kTokensPerStore) / kTokensPerGroup;
  for (uint32_t groups = empty_groups; groups != 0;) {
    const int group = (__ffs(static_cast<int>(groups)) - 1) & ~(kGroupsPerStep - 1);
    groups &= ~(kStepGroups << group);
    if (empty_groups >> (group + lane_group) & 1u) store_16_bytes(first + group * kTokensPerGroup, fill_16_bytes);
  }
  for (uint32_t groups = __ballot_sync(kWholeWarp, !has_few) & ~empty_groups; groups != 0; groups &= groups - 1) {
    const int group = __ffs(static_cast<int>(groups)) - 1;
    T* const logit = logits + group * kTokensPerGroup + lane;
    const uint32_t words[] = {lane_words.x, lane_words.y, lane_words.z, lane_words.w};
#pragma unroll
    for (int i = 0; i < kWordsPerGroup; ++i) {
      const uint32_t allowed = __shfl_sync(kWholeWarp, words[i], group);
      if ((allowed >> lane & 1u) == 0) logit[i * kBitsPerWord] = neg_inf;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocksPerSm) apply_bitmask_kernel(ApplyBitmaskParams params) {
  const int lane = threadIdx.x % kLanes;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  const int64_t first_token = tile * kTokensPerTile;
  if (first_token >= params.vocab_size) return;
  const T neg_inf = static_cast<T>(params.neg_inf);

  uint4 next_words = load_group(params, blockIdx.y, tile, lane);
  for (int64_t row = blockIdx.y; row < params.num_rows; row += gridDim.y) {
    const uint4 lane_words = next_words;
    if (row + gridDim.y < params.num_rows) next_words = load_group(params, row + gridDim.y, tile, lane);
    T* logits = static_cast<T*>(params.logits) + row * params.row_stride + first_token;
    if (is_16_byte_aligned(logits)) {
      mask_tile<T, true>(logits, lane_words, neg_inf, lane);
    } else {
      mask_tile<T, false>(logits, lane_words, neg_inf, lane);
    }
  }
}

}  // namespace

void apply_bitmask(const ApplyBitmaskParams& params, int num_sms, void* stream) {
  const int64_t tiles = (params.vocab_size + kTokensPerTile - 1) / kTokensPerTile;
  const int64_t blocks_per_row = (tiles + kWarps - 1) / kWarps;
  const int64_t resident_rows = std::max<int64_t>(1, static_cast<int64_t>(num_sms) * kBlocksPerSm / blocks_per_row);
  const int64_t max_rows = std::min({params.num_rows, resident_rows, static_cast<int64_t>(kMaxGridRows)});
  const int64_t rows_per_block = (params.num_rows + max_rows - 1) / max_rows;
  const int64_t grid_rows = (params.num_rows + rows_per_block - 1) / rows_per_block;
  const dim3 grid(static_cast<unsigned>(blocks_per_row), static_cast<unsigned>(grid_rows));
  const dim3 block(kWarps * kLanes);
  const auto kernel = params.element_bytes == 4 ? apply_bitmask_kernel<uint32_t> : apply_bitmask_kernel<uint16_t>;
  STRUCTOUT_LAUNCH(kernel, grid, block, static_cast<cudaStream_t>(stream), params);
}

}  // namespace structout::cuda
