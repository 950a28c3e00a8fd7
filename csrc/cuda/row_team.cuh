// A team: the threads that sample one row together. It is a block, or a thread block
// cluster whose blocks share a long row. Algorithms are written once, over a team. Each
// block keeps its part of the data in its own shared memory.
#pragma once

#include <cstdint>

#include "cuda/compat.h"

#ifdef __CUDACC__
#include <cooperative_groups.h>
#endif

namespace structout::cuda {

constexpr int kMaxThreads = 512;  // per block; all block sizes are powers of two
constexpr int kMaxWarps = kMaxThreads / kLanes;

// A block's shared memory for reductions. The other blocks of a cluster read it.
struct TeamScratch {
  uint64_t warp_values[kMaxWarps];
  uint64_t block_values[2];  // two that take turns: one may still be read while the next is written
};

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % kLanes; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / kLanes; }

__device__ __forceinline__ uint32_t max_of_warp(uint32_t value) {
#ifdef __CUDACC__
  return __reduce_max_sync(kWholeWarp, value);
#else
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, value, lanes);
    value = other > value ? other : value;
  }
  return value;
#endif
}

__device__ __forceinline__ uint64_t shuffle_xor(uint64_t value, int lanes) {
  return __shfl_xor_sync(kWholeWarp, static_cast<unsigned long long>(value), lanes);
}

struct Max {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

class BlockTeam {
 public:
  static constexpr int kMaxBlocks = 1;
  static constexpr int kLoadsInFlight = 2;  // of 16 bytes per thread: 32 KB per SM with two blocks

  __device__ explicit BlockTeam(TeamScratch& scratch) : scratch_(scratch) {}

  __device__ int block_rank() const { return 0; }
  __device__ int num_blocks() const { return 1; }
  __device__ void sync() const { __syncthreads(); }

  // The address of block `rank`'s counterpart of `local`.
  template <class T>
  __device__ T* in_block(T* local, int) const {
    return local;
  }

  // Combines the values of all threads. Every thread gets the result.
  template <class Combine>
  __device__ uint64_t reduce(uint64_t value, Combine combine) {
    return reduce_block(value, combine);
  }

 protected:
  template <class Combine>
  __device__ uint64_t reduce_block(uint64_t value, Combine combine) {
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) value = combine(value, shuffle_xor(value, lanes));
    __syncthreads();  // every thread has read the previous result
    if (lane_id() == 0) scratch_.warp_values[warp_id()] = value;
    __syncthreads();
    value = scratch_.warp_values[0];
    for (int warp = 1; warp < static_cast<int>(blockDim.x) / kLanes; ++warp) {
      value = combine(value, scratch_.warp_values[warp]);
    }
    return value;
  }

  TeamScratch& scratch_;
};

constexpr int kMaxClusterBlocks = 8;  // every GPU with clusters supports this size

// Cluster primitives. The test harness (testing/host_simt.h) has no clusters. It runs a
// cluster as one block of two dimensions: y is the rank of the block, and each rank has
// its own entry of an array of scratch memories. There __syncthreads synchronizes the
// whole cluster, so the harness cannot detect a missing cluster.sync().
#if !defined(__CUDACC__)

inline int cluster_rank() { return static_cast<int>(threadIdx.y); }
inline int cluster_size() { return static_cast<int>(blockDim.y); }
inline void sync_cluster() { __syncthreads(); }

#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ int cluster_rank() {
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
}
__device__ __forceinline__ int cluster_size() {
  return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
}
__device__ __forceinline__ void sync_cluster() { cooperative_groups::this_cluster().sync(); }

#else  // never launched on such a device

__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ int cluster_size() { return 1; }
__device__ __forceinline__ void sync_cluster() {}

#endif

class ClusterTeam : public BlockTeam {
 public:
  static constexpr int kMaxBlocks = kMaxClusterBlocks;
  static constexpr int kLoadsInFlight = 4;  // clusters are used when there are fewer blocks than SMs

  // In the harness the blocks' scratch memories lie `scratch_stride` bytes apart. On a
  // GPU each block has its own shared memory, and scratch has the same address in all
  // of them.
  __device__ ClusterTeam(TeamScratch& scratch, size_t scratch_stride)
      : BlockTeam(scratch), scratch_stride_(scratch_stride) {}

  __device__ int block_rank() const { return cluster_rank(); }
  __device__ int num_blocks() const { return cluster_size(); }
  __device__ void sync() const { sync_cluster(); }

  template <class T>
  __device__ T* in_block(T* local, int rank) const {
#if !defined(__CUDACC__)
    const int64_t blocks_away = rank - cluster_rank();
    return reinterpret_cast<T*>(reinterpret_cast<char*>(local) + blocks_away * static_cast<int64_t>(scratch_stride_));
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(local, rank);
#else
    return local;
#endif
  }

  template <class Combine>
  __device__ uint64_t reduce(uint64_t value, Combine combine) {
    value = reduce_block(value, combine);
    uint64_t* block_value = &scratch_.block_values[turn_];
    turn_ ^= 1;
    if (threadIdx.x == 0) *block_value = value;
    sync();
    value = *in_block(block_value, 0);
    for (int rank = 1; rank < num_blocks(); ++rank) value = combine(value, *in_block(block_value, rank));
    return value;
  }

 private:
  size_t scratch_stride_;
  int turn_ = 0;
};

}  // namespace structout::cuda
