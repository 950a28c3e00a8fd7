// logits[n, v] = -inf where bit v of bitmask[rows[n]] is 0.
//
// One warp owns a tile of 4,096 tokens of one row: 32 lanes x 16 bytes of mask, loaded
// coalesced. A ballot skips groups of 128 tokens (one lane's load) that are fully
// allowed. For the other groups the warp exchanges the mask words by shuffles and
// stores -inf: 16 bytes per lane where all of those tokens are disallowed, otherwise
// one element at a time.
//
// Bytes moved per row: V/8 of mask, and the logit of each disallowed token once. Logits
// are never read.
//
// Launch: blocks of 2 warps. grid.x covers a row and grid.y strides over the rows, so
// no thread needs a division.
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

// Bits past the last column read as allowed, so that nothing is stored there.
__device__ __forceinline__ uint32_t allow_past_end(uint32_t word, int64_t first_token, int64_t vocab_size) {
  const int64_t left = vocab_size - first_token;
  if (left >= kBitsPerWord) return word;
  return left <= 0 ? kAllAllowed : word | kAllAllowed << left;
}

__device__ __forceinline__ uint4 load_group(const MaskRow& mask, int64_t group, int64_t vocab_size) {
  const int64_t first = group * kWordsPerGroup;
  uint4 words;
  if (first + kWordsPerGroup <= mask.num_words && is_16_byte_aligned(mask.words + first)) {
    words = __ldg(reinterpret_cast<const uint4*>(mask.words + first));
  } else {
    words = make_uint4(mask.word(first), mask.word(first + 1), mask.word(first + 2), mask.word(first + 3));
  }
  const int64_t token = first * kBitsPerWord;
  words.x = allow_past_end(words.x, token, vocab_size);
  words.y = allow_past_end(words.y, token + kBitsPerWord, vocab_size);
  words.z = allow_past_end(words.z, token + 2 * kBitsPerWord, vocab_size);
  words.w = allow_past_end(words.w, token + 3 * kBitsPerWord, vocab_size);
  return words;
}

// Word `index` of the tile's 128. Every lane must call this; lanes may ask for
// different words.
__device__ __forceinline__ uint32_t word_of_tile(const uint4& lane_words, int index) {
  const int lane = index / kWordsPerGroup;
  const uint32_t x = __shfl_sync(kWholeWarp, lane_words.x, lane);
  const uint32_t y = __shfl_sync(kWholeWarp, lane_words.y, lane);
  const uint32_t z = __shfl_sync(kWholeWarp, lane_words.z, lane);
  const uint32_t w = __shfl_sync(kWholeWarp, lane_words.w, lane);
  switch (index % kWordsPerGroup) {
    case 0:
      return x;
    case 1:
      return y;
    case 2:
      return z;
    default:
      return w;
  }
}

// Each lane stores kTokensPerStore tokens at a time: 16 bytes, or one token if the row
// is not aligned to 16 bytes.
template <class T, int kTokensPerStore>
__device__ __forceinline__ void mask_tile(T* logits, const uint4& lane_words, T neg_inf, int lane) {
  constexpr int kTokensPerStep = kLanes * kTokensPerStore;
  constexpr int kGroupsPerStep = kTokensPerStep > kTokensPerGroup ? kTokensPerStep / kTokensPerGroup : 1;
  constexpr int kStepsPerVisit = kTokensPerStep < kTokensPerGroup ? kTokensPerGroup / kTokensPerStep : 1;
  constexpr uint32_t kVisitGroups = (1u << kGroupsPerStep) - 1;
  constexpr uint32_t kStoreBits = (1u << kTokensPerStore) - 1;

  const bool has_disallowed = (lane_words.x & lane_words.y & lane_words.z & lane_words.w) != kAllAllowed;
  uint32_t groups = __ballot_sync(kWholeWarp, has_disallowed);
  while (groups != 0) {
    const int group = (__ffs(static_cast<int>(groups)) - 1) & ~(kGroupsPerStep - 1);
    groups &= ~(kVisitGroups << group);
#pragma unroll
    for (int step = 0; step < kStepsPerVisit; ++step) {
      const int token = group * kTokensPerGroup + step * kTokensPerStep + lane * kTokensPerStore;
      const uint32_t word = word_of_tile(lane_words, token / kBitsPerWord);
      const uint32_t allowed = word >> (token % kBitsPerWord) & kStoreBits;
      if (kTokensPerStore > 1 && allowed == 0) {
        const uint32_t fill = sizeof(T) == 4 ? neg_inf : neg_inf * 0x10001u;
        store_16_bytes(logits + token, make_uint4(fill, fill, fill, fill));
      } else {
#pragma unroll
        for (int i = 0; i < kTokensPerStore; ++i) {
          if ((allowed >> i & 1u) == 0) logits[token + i] = neg_inf;
        }
      }
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

  for (int64_t row = blockIdx.y; row < params.num_rows; row += gridDim.y) {
    const MaskRow mask = mask_row(params.bitmask, params.rows, row);
    if (mask.is_free) continue;
    const uint4 lane_words = load_group(mask, tile * kLanes + lane, params.vocab_size);
    T* logits = static_cast<T*>(params.logits) + row * params.row_stride + first_token;
    if (is_16_byte_aligned(logits)) {
      mask_tile<T, 16 / sizeof(T)>(logits, lane_words, neg_inf, lane);
    } else {
      mask_tile<T, 1>(logits, lane_words, neg_inf, lane);
    }
  }
}

}  // namespace

void apply_bitmask(const ApplyBitmaskParams& params, int num_sms, void* stream) {
  const int64_t tiles = (params.vocab_size + kTokensPerTile - 1) / kTokensPerTile;
  const int64_t blocks_per_row = (tiles + kWarps - 1) / kWarps;
  const int64_t resident_rows = std::max<int64_t>(1, static_cast<int64_t>(num_sms) * kBlocksPerSm / blocks_per_row);
  const int64_t grid_rows = std::min({params.num_rows, resident_rows, static_cast<int64_t>(kMaxGridRows)});
  const dim3 grid(static_cast<unsigned>(blocks_per_row), static_cast<unsigned>(grid_rows));
  const dim3 block(kWarps * kLanes);
  const auto kernel = params.element_bytes == 4 ? apply_bitmask_kernel<uint32_t> : apply_bitmask_kernel<uint16_t>;
  STRUCTOUT_LAUNCH(kernel, grid, block, static_cast<cudaStream_t>(stream), params);
}

}  // namespace structout::cuda
