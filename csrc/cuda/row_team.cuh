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

// Integers that are reduced together.
template <int kCount>
struct Values {
  uint64_t at[kCount];
};
constexpr int kMaxValues = 6;

// A block's shared memory for reductions. The other blocks of a cluster read it.
struct TeamScratch {
  uint64_t warp_values[kMaxWarps][kMaxValues];
  uint64_t block_values[2][kMaxValues];  // two that take turns: one may still be read while the next is written
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

// A reduction of teams. 0 is neutral.
struct Max {
  __device__ uint64_t of_warp(uint64_t value) const {
    const auto high = static_cast<uint32_t>(value >> 32), highest = max_of_warp(high);
    return uint64_t{highest} << 32 | max_of_warp(high == highest ? static_cast<uint32_t>(value) : 0);
  }
};

struct Sum {
  __device__ uint64_t of_warp(uint64_t value) const {
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      value += __shfl_xor_sync(kWholeWarp, static_cast<unsigned long long>(value), lanes);
    }
    return value;
  }
};

class BlockTeam {
 public:
  static constexpr int kMaxBlocks = 1;

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
  template <int kCount, class Combine>
  __device__ Values<kCount> reduce(const Values<kCount>& values, Combine combine) {
    return reduce_block(values, combine);
  }
  template <class Combine>
  __device__ uint64_t reduce(uint64_t value, Combine combine) {
    return reduce(Values<1>{{value}}, combine).at[0];
  }

 protected:
  template <int kCount, class Combine>
  __device__ Values<kCount> reduce_block(Values<kCount> values, Combine combine) {
    const bool is_warp = lane_id() < static_cast<int>(blockDim.x) / kLanes;
    for (int i = 0; i < kCount; ++i) values.at[i] = combine.of_warp(values.at[i]);
    __syncthreads();  // every thread has read the previous result
    for (int i = 0; i < kCount; ++i) {
      if (lane_id() == 0) scratch_.warp_values[warp_id()][i] = values.at[i];
    }
    __syncthreads();
    for (int i = 0; i < kCount; ++i) {
      values.at[i] = combine.of_warp(is_warp ? scratch_.warp_values[lane_id()][i] : 0);
    }
    return values;
  }

  TeamScratch& scratch_;
};

constexpr int kMaxClusterBlocks = 8;  // every GPU with clusters supports this size

// Cluster primitives. The test harness (simt/host_simt.h) has no clusters. It runs a
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

  template <int kCount, class Combine>
  __device__ Values<kCount> reduce(Values<kCount> values, Combine combine) {
    values = reduce_block(values, combine);
    uint64_t (*block_values)[kMaxValues] = &scratch_.block_values[turn_];
    turn_ ^= 1;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kCount; ++i) (*block_values)[i] = values.at[i];
    }
    sync();
    // Each lane reads the values of one block. The number of blocks is a power of two, so
    // lanes beyond it read some block's again.
    const uint64_t* of_block = *in_block(block_values, lane_id() & (num_blocks() - 1));
    for (int i = 0; i < kCount; ++i) {
      const uint64_t value = of_block[i];
      values.at[i] = combine.of_warp(lane_id() < num_blocks() ? value : 0);
    }
    return values;
  }
  template <class Combine>
  __device__ uint64_t reduce(uint64_t value, Combine combine) {
    return reduce(Values<1>{{value}}, combine).at[0];
  }

 private:
  size_t scratch_stride_;
  int turn_ = 0;
};

}  // namespace structout::cuda
