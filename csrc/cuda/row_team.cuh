// The threads that sample one row together: a block, or a thread block cluster that shares a long row out to its
// blocks. Algorithms are written once, over a team; each block of it keeps its part of the work in its own shared
// memory.
#pragma once

#include <cstdint>

#include "cuda/compat.h"

#ifdef __CUDACC__
#include <cooperative_groups.h>
#endif

namespace structout::cuda {

constexpr int kMaxThreads = 512;  // a block; a power of two, as is every block size here
constexpr int kMaxWarps = kMaxThreads / kLanes;

// What a block of a team shares with the others.
struct TeamScratch {
  uint64_t of_warp[kMaxWarps];
  uint64_t of_block[2];  // reductions take turns: while one is still being read, the next is written
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
  static constexpr int kLoadsInFlight = 2;  // of 16 bytes, a thread: 32 KB in all where two blocks share an SM

  __device__ explicit BlockTeam(TeamScratch& scratch) : scratch_(scratch) {}

  __device__ int block_rank() const { return 0; }
  __device__ int num_blocks() const { return 1; }
  __device__ void sync() const { __syncthreads(); }

  // Where block `rank` of the team has its own `local`.
  template <class T>
  __device__ T* of_block(T* local, int) const {
    return local;
  }

  // Of all threads' values, to all threads.
  template <class Combine>
  __device__ uint64_t reduce(uint64_t value, Combine combine) {
    return reduce_block(value, combine);
  }

 protected:
  template <class Combine>
  __device__ uint64_t reduce_block(uint64_t value, Combine combine) {
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) value = combine(value, shuffle_xor(value, lanes));
    __syncthreads();  // the last reduction has been read
    if (lane_id() == 0) scratch_.of_warp[warp_id()] = value;
    __syncthreads();
    value = scratch_.of_warp[0];
    for (int warp = 1; warp < static_cast<int>(blockDim.x) / kLanes; ++warp) {
      value = combine(value, scratch_.of_warp[warp]);
    }
    return value;
  }

  TeamScratch& scratch_;
};

constexpr int kMaxClusterBlocks = 8;  // what every GPU with clusters can run

// What a cluster is made of. The harness has none: there a cluster is one block of two dimensions, y the rank of the
// block in it, with an array of what each block shares. Its __syncthreads is the cluster's, so what it cannot see is a
// cluster.sync() that is missing.
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
  static constexpr int kLoadsInFlight = 4;  // clusters run where there are fewer blocks than SMs

  // Blocks' scratch memories lie `scratch_stride` bytes apart; on a GPU each is at the same address of its own block.
  __device__ ClusterTeam(TeamScratch& scratch, size_t scratch_stride)
      : BlockTeam(scratch), scratch_stride_(scratch_stride) {}

  __device__ int block_rank() const { return cluster_rank(); }
  __device__ int num_blocks() const { return cluster_size(); }
  __device__ void sync() const { sync_cluster(); }

  template <class T>
  __device__ T* of_block(T* local, int rank) const {
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
    uint64_t* turn = &scratch_.of_block[turn_];
    turn_ ^= 1;
    if (threadIdx.x == 0) *turn = value;
    sync();
    value = *of_block(turn, 0);
    for (int rank = 1; rank < num_blocks(); ++rank) value = combine(value, *of_block(turn, rank));
    return value;
  }

 private:
  size_t scratch_stride_;
  int turn_ = 0;
};

}  // namespace structout::cuda
