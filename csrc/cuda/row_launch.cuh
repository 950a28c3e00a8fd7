// Launches of kernels that read whole rows of logits: one team of threads per row. A team
// is a block of up to 512 threads. If that leaves multiprocessors idle, it is a cluster of
// up to 8 blocks (compute capability 9.0 and later), as many as keep all clusters running
// at a time. Each block of a kernel with several passes keeps its share of the row in
// dynamic shared memory if it fits, so that global memory is read once.
#pragma once

#include <algorithm>

#include "common/masked_logits.h"
#include "cuda/compat.h"
#include "cuda/device_facts.h"
#include "cuda/row_team.cuh"

namespace structout::cuda {

constexpr int kMinThreads = 64;
constexpr int kTokensPerThread = 64;  // fewer threads where the vocabulary is small
constexpr int kBlocksPerSm = 2;
constexpr int kMinShareTokens = 2048;       // a smaller share is not worth another block
constexpr int kReservedSharedBytes = 1024;  // CUDA reserves this much in each block

struct TeamShape {
  int blocks_per_row, threads;
  int64_t store_vectors;  // of a block's share, 16 bytes each; 0: the share is not kept
};

// The bytes of dynamic shared memory that a block has beside its static shared memory.
inline int64_t max_store_bytes(const DeviceFacts& device, int blocks_per_sm, size_t static_bytes) {
  const int64_t taken = static_cast<int64_t>(static_bytes) + kReservedSharedBytes;
  return std::max<int64_t>(0, device.max_shared_bytes_a_block / blocks_per_sm - taken);
}

// `static_bytes`: the kernel's static shared memory. `is_read_again`: whether later
// passes read the row again.
inline TeamShape team_shape(const MaskedLogits& logits, const DeviceFacts& device, size_t static_bytes,
                            bool is_read_again) {
  TeamShape shape{1, kMinThreads, 0};
  while (shape.threads < kMaxThreads && logits.num_columns() > int64_t{shape.threads} * kTokensPerThread) {
    shape.threads *= 2;
  }
  for (const int max_clusters : device.max_clusters) {
    const int blocks_per_row = shape.blocks_per_row * 2;
    if (logits.num_rows > max_clusters || logits.num_columns() < int64_t{blocks_per_row} * kMinShareTokens) break;
    shape.blocks_per_row = blocks_per_row;
  }
  const int64_t tokens_per_vector = logits.format == FloatFormat::kFloat32 ? 4 : 8;
  const int64_t first_vector = logits.vocab_begin / tokens_per_vector;
  const int64_t vectors = (logits.vocab_end + tokens_per_vector - 1) / tokens_per_vector - first_vector;
  const int64_t share = (vectors + shape.blocks_per_row - 1) / shape.blocks_per_row;
  const int blocks_per_sm = shape.blocks_per_row > 1 ? 1 : kBlocksPerSm;
  const bool fits = share * 16 <= max_store_bytes(device, blocks_per_sm, static_bytes);
  if (is_read_again && fits) shape.store_vectors = share;
  return shape;
}

#ifdef __CUDACC__
struct LaunchConfig : cudaLaunchConfig_t {
  LaunchConfig(unsigned num_rows, unsigned blocks_per_row, unsigned threads, size_t store_bytes)
      : cudaLaunchConfig_t{} {
    cluster_.id = cudaLaunchAttributeClusterDimension;
    cluster_.val.clusterDim = {blocks_per_row, 1, 1};
    gridDim = dim3(num_rows * blocks_per_row);
    blockDim = dim3(threads);
    dynamicSmemBytes = store_bytes;
    attrs = &cluster_;
    numAttrs = blocks_per_row > 1 ? 1 : 0;
  }
  LaunchConfig(const LaunchConfig&) = delete;  // attrs points into this object

 private:
  cudaLaunchAttribute cluster_{};
};
#endif

// Launches the kernel of the shape as kernel(params, store_vectors).
template <class Params>
void launch_teams(void (*by_blocks)(Params, int64_t), void (*by_clusters)(Params, int64_t), const TeamShape& shape,
                  const Params& params, int64_t rows, void* stream) {
  const size_t store_bytes = static_cast<size_t>(shape.store_vectors) * 16;
  const auto kernel = shape.blocks_per_row > 1 ? by_clusters : by_blocks;
  const unsigned blocks_per_row = static_cast<unsigned>(shape.blocks_per_row);
  const unsigned threads = static_cast<unsigned>(shape.threads), num_rows = static_cast<unsigned>(rows);
#ifdef __CUDACC__
  LaunchConfig config(num_rows, blocks_per_row, threads, store_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchKernelEx(&config, kernel, params, shape.store_vectors);
#else
  simt::check_dynamic_shared(kernel, store_bytes);
  simt::launch_clusters(num_rows, blocks_per_row, threads, store_bytes, kernel, params, shape.store_vectors);
#endif
}

#ifdef __CUDACC__
extern __shared__ uint4 dynamic_shared[];
__device__ __forceinline__ uint4* row_store() { return dynamic_shared; }
#else
inline uint4* row_store() { return static_cast<uint4*>(simt::dynamic_shared()); }
#endif

// The row and the memory of a block of a cluster. The harness runs a cluster as
// one block, see row_team.cuh: a kernel's scratch memory is then that of all blocks.
struct ClusterPlace {
  int64_t row;
  int scratch;
  uint4* store;
};

#ifdef __CUDACC__
constexpr int kNumScratches = 1;
__device__ __forceinline__ ClusterPlace cluster_place(int64_t) {
  return {blockIdx.x / static_cast<unsigned>(cluster_size()), 0, row_store()};
}
#else
constexpr int kNumScratches = kMaxClusterBlocks;
inline ClusterPlace cluster_place(int64_t store_vectors) {
  return {blockIdx.x, cluster_rank(), row_store() + cluster_rank() * store_vectors};
}
#endif

}  // namespace structout::cuda
