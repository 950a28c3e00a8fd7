// logits[n, v] = -inf where bit v of bitmask[rows[n]] is 0.
//
// Logits are written 16 bytes at a time, side by side. 16 bytes of which some are allowed
// are read before: memory is written in sectors of 32 bytes, and what a store to a part of
// one lacks would be read anyway, later and out of order. Only in tiles with few
// disallowed tokens are these stored one by one, because nothing waits for a store.
//
// Bytes moved per row: V/8 of mask, each disallowed logit once, and the logits in the same
// 16 bytes once more in each direction.
//
// Launch: in small batches a thread for 16 bytes of logits, which it reads beside their
// mask, so that it waits once. Otherwise a warp for a tile of 2,048 tokens. The blocks lie
// as the logits do in memory, so those that run at a time write side by side. Blocks that
// went on to other rows would drift apart.
#include <algorithm>

#include "cuda/apply_bitmask.h"
#include "cuda/compat.h"

namespace structout::cuda {
namespace {

constexpr int kSmallBatchThreads = 128;
constexpr int64_t kSmallBatchVectors = 4096;  // at most, of 16 bytes for each multiprocessor

constexpr int kWarps = 8, kBlocksPerSm = 5;
constexpr int kWordsPerLane = 2, kWordsPerTile = kWordsPerLane * kLanes;
constexpr int kTokensPerTile = kWordsPerTile * kBitsPerWord;
constexpr unsigned kFewDisallowed = 2;  // of the tokens of each lane's words

constexpr int64_t kMaxGridRows = 65535;  // CUDA's limit on gridDim.y

// 16 bytes of logits.
template <class T>
constexpr int kTokensPerVector = 16 / sizeof(T);
template <class T>
constexpr uint32_t kWholeVector = (1u << kTokensPerVector<T>)-1;

template <class T>
__device__ __forceinline__ T* logits_of(const ApplyBitmaskParams& params, int64_t row, int64_t token) {
  return static_cast<T*>(params.logits) + row * params.row_stride + token;
}

// A word of -inf.
template <class T>
__device__ __forceinline__ uint32_t fill_of(const ApplyBitmaskParams& params) {
  return sizeof(T) == 4 ? params.neg_inf : params.neg_inf * 0x10001u;
}

// The vector with -inf for each token whose bit is 0.
template <class T>
__device__ __forceinline__ uint4 masked(const uint4& vector, uint32_t allowed, uint32_t fill) {
  const auto masked_word = [&](uint32_t word, int i) {
    uint32_t kept = allowed >> i & 1u ? ~0u : 0;
    if (sizeof(T) == 2) kept = (allowed >> 2 * i & 1u ? 0xffffu : 0) | (allowed >> 2 * i & 2u ? 0xffff0000u : 0);
    return (word & kept) | (fill & ~kept);
  };
  return make_uint4(masked_word(vector.x, 0), masked_word(vector.y, 1), masked_word(vector.z, 2),
                    masked_word(vector.w, 3));
}

template <class T>
__device__ __forceinline__ void mask_one_by_one(T* logits, uint32_t allowed, T neg_inf) {
  for (uint32_t bits = ~allowed; bits != 0; bits &= bits - 1) {
    logits[__ffs(static_cast<int>(bits)) - 1] = neg_inf;
  }
}

template <class T>
__global__ void __launch_bounds__(kSmallBatchThreads) apply_bitmask_by_vectors(ApplyBitmaskParams params) {
  constexpr int kTokens = kTokensPerVector<T>;
  const int64_t row = blockIdx.y, token = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kTokens;
  const int64_t left = params.vocab_size - token;
  if (left <= 0) return;
  T* const logits = logits_of<T>(params, row, token);
  const bool is_vector = left >= kTokens && is_16_byte_aligned(logits);
  uint4 vector = {};
  if (is_vector) vector = load_16_bytes(logits);
  const MaskRow mask = mask_row(params.bitmask, params.rows, row);
  if (mask.is_free) return;
  uint32_t allowed = mask.word(token / kBitsPerWord) >> token % kBitsPerWord & kWholeVector<T>;
  if (allowed == kWholeVector<T>) return;
  if (is_vector) return store_16_bytes(logits, masked<T>(vector, allowed, fill_of<T>(params)));
  if (left < kTokens) allowed |= ~0u << left;
  mask_one_by_one(logits, allowed | ~kWholeVector<T>, static_cast<T>(params.neg_inf));
}

// A lane's words of a tile's mask: side by side with those of the other lanes.
struct LaneWords {
  uint32_t at[kWordsPerLane];

  // Bits past the last column read as allowed, so that nothing is stored there.
  __device__ LaneWords(const MaskRow& mask, int64_t first_word, int64_t vocab_size) {
#pragma unroll
    for (int i = 0; i < kWordsPerLane; ++i) {
      const int64_t word = first_word + i * kLanes + lane(), left = vocab_size - word * kBitsPerWord;
      at[i] = word < mask.num_words ? __ldg(mask.words + word) : 0;
      if (left < kBitsPerWord) at[i] = left <= 0 ? kAllAllowed : at[i] | kAllAllowed << left;
    }
  }

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  // The first logit of a word, among those of the tile.
  __device__ static int token(int i) { return (i * kLanes + lane()) * static_cast<int>(kBitsPerWord); }
};

// Masks the tokens before the row's end that do not fill a vector, and marks them as
// allowed.
template <class T>
__device__ __forceinline__ void mask_rest(T* logits, LaneWords& words, int64_t left, T neg_inf) {
  const int rest = static_cast<int>(left % kTokensPerVector<T>), begin = static_cast<int>(left) - rest;
  if (rest == 0) return;
#pragma unroll
  for (int i = 0; i < kWordsPerLane; ++i) {
    const int place = begin - LaneWords::token(i);  // in the word
    if (place < 0 || place >= kBitsPerWord) continue;
    const uint32_t before = (1u << place) - 1;
    mask_one_by_one(logits + LaneWords::token(i), words.at[i] | before, neg_inf);
    words.at[i] |= ~before;
  }
}

template <class T>
__device__ __forceinline__ void mask_tile(T* logits, LaneWords words, int64_t left, const ApplyBitmaskParams& params) {
  constexpr int kTokens = kTokensPerVector<T>;
  constexpr int kVectorsPerWord = kBitsPerWord / kTokens, kWordsPerStep = kLanes / kVectorsPerWord;
  constexpr int kInFlight = 4;  // loads of a lane
  const T neg_inf = static_cast<T>(params.neg_inf);
  const uint32_t fill = fill_of<T>(params);
  const int lane = LaneWords::lane();

  unsigned num_disallowed = 0;
  for (int i = 0; i < kWordsPerLane; ++i) num_disallowed += static_cast<unsigned>(__popc(~words.at[i]));
  if (__all_sync(kWholeWarp, num_disallowed <= kFewDisallowed)) {
#pragma unroll
    for (int i = 0; i < kWordsPerLane; ++i) mask_one_by_one(logits + LaneWords::token(i), words.at[i], neg_inf);
    return;
  }
  if (!is_16_byte_aligned(logits)) {
#pragma unroll
    for (int i = 0; i < kWordsPerLane; ++i) {
      for (int word = 0; word < kLanes; ++word) {
        const uint32_t allowed = __shfl_sync(kWholeWarp, words.at[i], word);
        if ((allowed >> lane & 1u) == 0) logits[(i * kLanes + word) * kBitsPerWord + lane] = neg_inf;
      }
    }
    return;
  }
  if (left < kTokensPerTile) mask_rest(logits, words, left, neg_inf);
#pragma unroll
  for (int i = 0; i < kWordsPerLane; ++i) {
    if (!__any_sync(kWholeWarp, words.at[i] != kAllAllowed)) continue;
#pragma unroll 1
    for (int first = 0; first < kVectorsPerWord; first += kInFlight) {
      uint32_t allowed[kInFlight];
      uint4 vectors[kInFlight];
      T* const here = logits + (i * kVectorsPerWord + first) * kLanes * kTokens + lane * kTokens;
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const uint32_t word =
            __shfl_sync(kWholeWarp, words.at[i], (first + k) * kWordsPerStep + lane / kVectorsPerWord);
        allowed[k] = word >> lane % kVectorsPerWord * kTokens & kWholeVector<T>;
        vectors[k] = make_uint4(fill, fill, fill, fill);
        const bool is_mixed = allowed[k] != 0 && allowed[k] != kWholeVector<T>;
        if (is_mixed) vectors[k] = load_16_bytes(here + k * kLanes * kTokens);
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (allowed[k] == kWholeVector<T>) continue;
        store_16_bytes(here + k * kLanes * kTokens, masked<T>(vectors[k], allowed[k], fill));
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocksPerSm) apply_bitmask_by_tiles(ApplyBitmaskParams params) {
  const int64_t tile = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes, first_token = tile * kTokensPerTile;
  const int64_t row = int64_t{blockIdx.z} * kMaxGridRows + blockIdx.y;
  if (first_token >= params.vocab_size || row >= params.num_rows) return;
  const MaskRow mask = mask_row(params.bitmask, params.rows, row);
  if (mask.is_free) return;
  const LaneWords words(mask, tile * kWordsPerTile, params.vocab_size);
  mask_tile(logits_of<T>(params, row, first_token), words, params.vocab_size - first_token, params);
}

template <class T>
void launch(const ApplyBitmaskParams& params, int num_sms, cudaStream_t stream) {
  const auto blocks_for = [&](int64_t tokens_per_block) {
    return static_cast<unsigned>((params.vocab_size + tokens_per_block - 1) / tokens_per_block);
  };
  const auto grid_y = static_cast<unsigned>(std::min(params.num_rows, kMaxGridRows));
  const auto grid_z = static_cast<unsigned>((params.num_rows + kMaxGridRows - 1) / kMaxGridRows);
  const int64_t num_vectors = params.num_rows * (params.vocab_size / kTokensPerVector<T> + 1);
  if (grid_z == 1 && num_vectors <= num_sms * kSmallBatchVectors) {
    const dim3 grid(blocks_for(kSmallBatchThreads * kTokensPerVector<T>), grid_y);
    STRUCTOUT_LAUNCH(apply_bitmask_by_vectors<T>, grid, dim3(kSmallBatchThreads), stream, params);
  } else {
    const dim3 grid(blocks_for(kWarps * kTokensPerTile), grid_y, grid_z);
    STRUCTOUT_LAUNCH(apply_bitmask_by_tiles<T>, grid, dim3(kWarps * kLanes), stream, params);
  }
}

}  // namespace

void apply_bitmask(const ApplyBitmaskParams& params, int num_sms, void* stream) {
  params.element_bytes == 4 ? launch<uint32_t>(params, num_sms, static_cast<cudaStream_t>(stream))
                            : launch<uint16_t>(params, num_sms, static_cast<cudaStream_t>(stream));
}

}  // namespace structout::cuda
