// push_all_gather: out = the shards of all ranks, in rank order.
//
// Every block owns a chunk of the shard. It pushes the chunk into the peers' buffers,
// 16 bytes per store, waits for the same block of every peer, and copies their chunks
// from its own buffer to `out`. Bytes that leave a device: the shard once per peer, or
// only once with multicast.
//
// Launch: up to 32 blocks of up to 512 threads, 2 vectors of 16 bytes per thread before
// another block is added.
#include <algorithm>

#include "cuda/push.cuh"
#include "cuda/push.h"

namespace structout::cuda {
namespace {

constexpr int64_t kVectorsPerThread = 2;  // fewer are not worth another block

__device__ __forceinline__ bool is_4_byte_aligned(const void* pointer) {
  return (reinterpret_cast<uintptr_t>(pointer) & 3u) == 0;
}

// Loads up to 16 bytes from any address. Bytes from `count` on are 0.
__device__ __forceinline__ uint4 load_bytes(const char* from, int64_t count) {
  if (count >= kVectorBytes && is_16_byte_aligned(from)) return *reinterpret_cast<const uint4*>(from);
  const bool is_aligned = is_4_byte_aligned(from);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (is_aligned && count >= 4 * i + 4) {
      words[i] = reinterpret_cast<const uint32_t*>(from)[i];
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (4 * i + k < count) words[i] |= uint32_t{static_cast<uint8_t>(from[4 * i + k])} << 8 * k;
      }
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ void store_bytes(char* to, const uint4& value, int64_t count) {
  if (count >= kVectorBytes && is_16_byte_aligned(to)) {
    *reinterpret_cast<uint4*>(to) = value;
    return;
  }
  const bool is_aligned = is_4_byte_aligned(to);
  const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (is_aligned && count >= 4 * i + 4) {
      reinterpret_cast<uint32_t*>(to)[i] = words[i];
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (4 * i + k < count) to[4 * i + k] = static_cast<char>(words[i] >> 8 * k);
      }
    }
  }
}

// Calls visit(offset) for each vector of this block's chunk.
template <class Visit>
__device__ __forceinline__ void for_each_vector(int64_t bytes, Visit visit) {
  const int64_t vectors = vectors_for(bytes);
  const int64_t end = vectors * (blockIdx.x + 1) / gridDim.x;
  for (int64_t i = vectors * blockIdx.x / gridDim.x + threadIdx.x; i < end; i += blockDim.x) visit(i * kVectorBytes);
}

__device__ __forceinline__ void push(const PushAllGatherParams& params, const PushCall& call) {
  const PushGroup& group = params.group;
  const int64_t slot = group.layout.gathered(call.epoch(), group.rank);
  for_each_vector(params.bytes, [&](int64_t at) {
    const uint4 vector = load_bytes(params.shard + at, params.bytes - at);
    if (group.multicast != nullptr) {
      store_16_bytes_to_all(group.multicast + slot + at, vector);
    } else {
      for (int64_t distance = 1; distance < group.layout.world_size; ++distance) {
        store_16_bytes(call.buffer_of(call.peer(distance)) + slot + at, vector);
      }
    }
  });
}

__device__ __forceinline__ void copy_out(const PushAllGatherParams& params, const PushCall& call) {
  const PushGroup& group = params.group;
  const char* buffer = call.buffer_of(group.rank);
  for (int64_t source = 0; source < group.layout.world_size; ++source) {
    const char* from = source == group.rank ? params.shard : buffer + group.layout.gathered(call.epoch(), source);
    char* to = params.out + source * params.bytes;
    for_each_vector(params.bytes, [&](int64_t at) {
      const int64_t left = params.bytes - at;
      store_bytes(to + at, load_bytes(from + at, left), left);
    });
  }
}

__global__ void __launch_bounds__(kMaxPushThreads) push_all_gather_kernel(PushAllGatherParams params) {
  __shared__ PushScratch scratch;
  PushCall call(params.group, scratch);
  if (!call.has_failed()) {
    push(params, call);
    if (call.meet()) copy_out(params, call);
  }
  if (call.end() && call.has_failed()) {
    const int64_t end = params.group.layout.world_size * params.bytes;
    for (int64_t at = threadIdx.x; at < end; at += blockDim.x) params.out[at] = static_cast<char>(params.fill_on_error);
  }
}

}  // namespace

void push_all_gather(const PushAllGatherParams& params, const PushGrid& max_grid, void* stream) {
  const int64_t vectors = std::max<int64_t>(1, vectors_for(params.bytes));
  const int64_t block_vectors = max_grid.threads * kVectorsPerThread;
  const int64_t blocks = std::min(max_grid.blocks, (vectors + block_vectors - 1) / block_vectors);
  const int64_t warps = ((vectors + blocks - 1) / blocks + kLanes - 1) / kLanes;
  const dim3 grid(static_cast<unsigned>(blocks));
  const dim3 block(static_cast<unsigned>(std::min(max_grid.threads, warps * kLanes)));
  STRUCTOUT_LAUNCH(push_all_gather_kernel, grid, block, static_cast<cudaStream_t>(stream), params);
}

}  // namespace structout::cuda
