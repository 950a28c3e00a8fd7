// Sorts one key per thread.
#pragma once

#include <cstdint>

#include "cuda/row_team.cuh"

namespace structout::cuda {

// One step of a bitonic sort: the thread whose number has `size` and `distance` as bits,
// or neither, keeps the higher of two keys.
__device__ __forceinline__ uint32_t key_after_step(uint32_t key, uint32_t other, unsigned size, unsigned distance) {
  const bool takes_higher = ((threadIdx.x & distance) == 0) == ((threadIdx.x & size) == 0);
  return takes_higher == (other > key) ? other : key;
}

// The steps of `size` between lanes, unrolled.
template <int kFirstDistance>
__device__ __forceinline__ uint32_t sort_in_warp(uint32_t key, unsigned size) {
#pragma unroll
  for (int distance = kFirstDistance; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, key, distance);
    key = key_after_step(key, other, size, static_cast<unsigned>(distance));
  }
  return key;
}

// Bitonic sort over a block. Keys from the `count`-th thread on must be 0. Thread i gets
// the i-th highest key. `exchange` has room for two keys per thread. Needs a barrier
// since `exchange` was last used.
__device__ __forceinline__ uint32_t sort_descending(uint32_t key, unsigned count, uint32_t* exchange) {
  key = sort_in_warp<1>(key, 2);
  key = sort_in_warp<2>(key, 4);
  key = sort_in_warp<4>(key, 8);
  key = sort_in_warp<8>(key, 16);
  key = sort_in_warp<16>(key, 32);
  uint32_t* next = exchange + blockDim.x;
#pragma unroll 1
  for (unsigned size = 2 * kLanes; size < 2 * count; size *= 2) {
#pragma unroll 1
    for (unsigned distance = size / 2; distance >= kLanes; distance /= 2) {
      exchange[threadIdx.x] = key;
      __syncthreads();
      key = key_after_step(key, exchange[threadIdx.x ^ distance], size, distance);
      uint32_t* const last = exchange;  // the next exchange may overtake this one's reads
      exchange = next;
      next = last;
    }
    key = sort_in_warp<16>(key, size);
  }
  return key;
}

}  // namespace structout::cuda
