// Sorts one key per thread.
#pragma once

#include <cstdint>

#include "cuda/row_team.cuh"

namespace structout::cuda {

// Bitonic sort over a block. Keys from the `count`-th thread on must be 0. Thread i gets
// the i-th highest key. `exchange` has room for two keys per thread. Needs a barrier
// since `exchange` was last used.
__device__ __forceinline__ uint32_t sort_descending(uint32_t key, unsigned count, uint32_t* exchange) {
  uint32_t* next = exchange + blockDim.x;
#pragma unroll 1
  for (unsigned size = 2; size < 2 * count; size *= 2) {
#pragma unroll 1
    for (unsigned distance = size / 2; distance > 0; distance /= 2) {
      uint32_t other;
      if (distance < kLanes) {
        other = __shfl_xor_sync(kWholeWarp, key, static_cast<int>(distance));
      } else {
        exchange[threadIdx.x] = key;
        __syncthreads();
        other = exchange[threadIdx.x ^ distance];
        uint32_t* const last = exchange;  // the next exchange may overtake this one's reads
        exchange = next;
        next = last;
      }
      const bool takes_higher = ((threadIdx.x & distance) == 0) == ((threadIdx.x & size) == 0);
      if (takes_higher == (other > key)) key = other;
    }
  }
  return key;
}

}  // namespace structout::cuda
