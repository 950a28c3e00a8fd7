// push_rows: sends the allowed logits of every row to the rank that owns the row.
//
// A warp takes a tile of 128 vectors of a row, each 16 bytes as they lie in the owner's
// buffer. It loads the vectors that hold an allowed token and stores them there. Bytes
// that leave a device: 16 for each such vector of another rank's rows.
//
// The buffer has one area for rows, not two that take turns, so that a captured graph
// finds its rows at the same address. An area may be overwritten two epochs later. So a
// push_rows that directly follows another one first waits for all ranks, which takes
// one more epoch.
//
// Launch: up to 32 blocks of up to 16 warps, one tile per warp at a time.
#include <algorithm>

#include "cuda/push.cuh"
#include "cuda/push.h"

namespace structout::cuda {
namespace {

constexpr int kVectorsPerLane = 4;  // loads in flight
constexpr int64_t kVectorsPerTile = kLanes * kVectorsPerLane;

// The position of this rank's part within a row. Its first and last vector may be
// shared with the neighbouring ranks.
template <class T>
struct Part {
  static constexpr int64_t kTokens = kVectorBytes / sizeof(T);

  int64_t begin, end;  // tokens

  __device__ explicit Part(const PushRowsParams& params)
      : begin(params.vocab_begin), end(params.vocab_begin + params.width) {}

  __device__ int64_t first_vector() const { return begin / kTokens; }
  __device__ int64_t num_vectors() const { return end > begin ? (end - 1) / kTokens - first_vector() + 1 : 0; }

  // One bit for each token of a vector that belongs to this rank.
  __device__ uint32_t tokens_of(int64_t vector) const {
    constexpr uint32_t kAll = (1u << kTokens) - 1;
    const int64_t first = vector * kTokens;
    const uint32_t from_begin = first >= begin ? kAll : kAll << (begin - first);
    const uint32_t to_end = first + kTokens <= end ? kAll : first >= end ? 0 : kAll >> (first + kTokens - end);
    return from_begin & to_end & kAll;
  }
};

template <class T>
__device__ __forceinline__ uint32_t allowed_tokens(const MaskRow& mask, int64_t vector) {
  constexpr uint32_t kAll = (1u << Part<T>::kTokens) - 1;
  if (mask.is_free) return kAll;
  const int64_t token = vector * Part<T>::kTokens;
  const int64_t word = token / kBitsPerWord;
  return word < mask.num_words ? __ldg(mask.words + word) >> (token % kBitsPerWord) & kAll : 0u;
}

template <class T>
__device__ __forceinline__ uint4 load_tokens(const T* logits, uint32_t tokens) {
  constexpr int kTokens = Part<T>::kTokens;
  constexpr int kPerWord = 4 / sizeof(T);
  if (tokens == (1u << kTokens) - 1 && is_16_byte_aligned(logits)) {
    return __ldg(reinterpret_cast<const uint4*>(logits));
  }
  uint32_t words[4] = {};
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
    if (tokens >> k & 1u) words[k / kPerWord] |= uint32_t{__ldg(logits + k)} << (k % kPerWord * 8 * sizeof(T));
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <class T>
__device__ __forceinline__ void store_tokens(T* to, const uint4& value, uint32_t tokens) {
  constexpr int kTokens = Part<T>::kTokens;
  constexpr int kPerWord = 4 / sizeof(T);
  if (tokens == (1u << kTokens) - 1) return store_16_bytes(to, value);
  const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
    if (tokens >> k & 1u) to[k] = static_cast<T>(words[k / kPerWord] >> (k % kPerWord * 8 * sizeof(T)));
  }
}

// Copies one tile of `row` of this rank's logits into `to`, the owner's row.
template <class T>
__device__ __forceinline__ void push_tile(const PushRowsParams& params, const Part<T>& part, int64_t row, int64_t tile,
                                          T* to) {
  const MaskRow mask = params.has_mask ? mask_row(params.bitmask, params.rows, row) : MaskRow{nullptr, 0, true};
  const T* logits = reinterpret_cast<const T*>(params.logits) + row * params.row_stride;
  const int64_t first = part.first_vector() + tile * kVectorsPerTile + threadIdx.x % kLanes;
  uint32_t tokens[kVectorsPerLane];
#pragma unroll
  for (int i = 0; i < kVectorsPerLane; ++i) {
    const int64_t vector = first + i * kLanes;
    const uint32_t own_tokens = part.tokens_of(vector);
    tokens[i] = own_tokens != 0 && (allowed_tokens<T>(mask, vector) & own_tokens) != 0 ? own_tokens : 0;
  }
  uint4 values[kVectorsPerLane];
#pragma unroll
  for (int i = 0; i < kVectorsPerLane; ++i) {
    const int64_t token = (first + i * kLanes) * Part<T>::kTokens;
    values[i] = tokens[i] != 0 ? load_tokens(logits + (token - part.begin), tokens[i]) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kVectorsPerLane; ++i) {
    const int64_t token = (first + i * kLanes) * Part<T>::kTokens;
    if (tokens[i] != 0) store_tokens(to + token, values[i], tokens[i]);
  }
}

template <class T>
__device__ __forceinline__ void push(const PushRowsParams& params, const PushCall& call) {
  const PushGroup& group = params.group;
  const int64_t world_size = group.layout.world_size;
  const Part<T> part(params);
  const int64_t pitch = whole_vectors(params.vocab_size * sizeof(T)) / sizeof(T);
  const int64_t tiles_of_row = (part.num_vectors() + kVectorsPerTile - 1) / kVectorsPerTile;
  const int64_t first_row = first_row_of(call.peer(1), world_size, params.num_rows);
  const int64_t warps_of_block = blockDim.x / kLanes;

  int64_t i = blockIdx.x * warps_of_block + threadIdx.x / kLanes;
  for (; i < params.num_rows * tiles_of_row; i += gridDim.x * warps_of_block) {
    const int64_t nth_row = i / tiles_of_row;
    const int64_t row = (first_row + nth_row) % params.num_rows;
    const int64_t owner = owner_of(row, world_size, params.num_rows);
    T* rows = reinterpret_cast<T*>(call.buffer_of(owner) + group.layout.rows());
    T* to = rows + (row - first_row_of(owner, world_size, params.num_rows)) * pitch;
    push_tile(params, part, row, i - nth_row * tiles_of_row, to);
  }
}

__device__ __forceinline__ void write_rows_out(const PushRowsParams& params, bool has_failed) {
  const PushGroup& group = params.group;
  const int64_t begin = first_row_of(group.rank, group.layout.world_size, params.num_rows);
  const int64_t end = first_row_of(group.rank + 1, group.layout.world_size, params.num_rows);
#pragma unroll 1  // a thread has one row, if any
  for (int64_t row = begin + threadIdx.x; row < end; row += blockDim.x) {
    const int64_t governing_row = !params.has_mask ? -1 : params.rows.values == nullptr ? row : params.rows.at(row);
    params.rows_out[row - begin] = has_failed ? kNoRow : governing_row;
  }
}

template <class T>
__global__ void __launch_bounds__(kMaxPushThreads) push_rows_kernel(PushRowsParams params) {
  __shared__ PushScratch scratch;
  PushCall call(params.group, scratch);
  const bool must_meet_first = call.follows_push_rows();
  if (!call.has_failed() && (!must_meet_first || call.meet())) {
    if (must_meet_first) call.begin_next_epoch();
    push<T>(params, call);
    call.meet();
  }
  if (call.end()) {
    if (threadIdx.x == 0) params.group.state->rows_epoch = call.epoch();
    write_rows_out(params, call.has_failed());
  }
}

}  // namespace

void push_rows(const PushRowsParams& params, const PushGrid& max_grid, void* stream) {
  // All ranks need the same grid, so it must not depend on the size of this rank's
  // shard.
  const int64_t vectors_of_row = vectors_for(params.vocab_size * params.element_bytes) / params.group.layout.world_size;
  const int64_t tiles = params.num_rows * (vectors_of_row / kVectorsPerTile + 1);
  const int64_t warps_of_block = std::max<int64_t>(1, std::min(max_grid.threads / kLanes, tiles));
  const int64_t blocks = std::max<int64_t>(1, std::min(max_grid.blocks, tiles / warps_of_block));
  const dim3 grid(static_cast<unsigned>(blocks));
  const dim3 block(static_cast<unsigned>(warps_of_block * kLanes));
  const auto kernel = params.element_bytes == 4 ? push_rows_kernel<uint32_t> : push_rows_kernel<uint16_t>;
  STRUCTOUT_LAUNCH(kernel, grid, block, static_cast<cudaStream_t>(stream), params);
}

}  // namespace structout::cuda
