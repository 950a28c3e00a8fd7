// Sums 4,096 numbers with shuffles, barriers, fences and atomics. The argument plants a
// mistake, which the matching sanitizer build must report.
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

#include "plants.h"
#include "simt/host_simt.h"

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kBlocks = 4;
constexpr unsigned kPerThread = 4;
constexpr unsigned kPerBlock = kThreads * kPerThread;

struct Params {
  const unsigned* numbers;
  unsigned* block_sums;
  unsigned* num_done;
  unsigned* sum;
  unsigned* num_odd;
  unsigned* last_writer;
};

__device__ __forceinline__ unsigned warp_sum(unsigned value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
  return value;
}

__global__ void __launch_bounds__(kThreads) block_sum(Params params) {
  __shared__ unsigned warp_sums[kWarps];
  __shared__ bool is_last;
  unsigned* reversed = static_cast<unsigned*>(structout::simt::dynamic_shared());
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;

  const unsigned* thread_numbers = params.numbers + blockIdx.x * kPerBlock + threadIdx.x * kPerThread;
  if (plants("MISALIGNED")) --thread_numbers;
  const uint4 four = *reinterpret_cast<const uint4*>(thread_numbers);
  const bool is_odd = ((four.x ^ four.y ^ four.z ^ four.w) & 1u) != 0;
  const unsigned odd_lanes = __ballot_sync(~0u, is_odd);
  if (lane == 0) atomicAdd(params.num_odd, __popc(odd_lanes));

  // Through shared memory and back, so that the sum depends on both barriers.
  unsigned at = kThreads - 1 - threadIdx.x;
  if (plants("DYNAMIC_SHARED_OVERRUN")) ++at;
  reversed[at] = four.x + four.y + four.z + four.w;
  __syncthreads();
  const unsigned of_warp = warp_sum(reversed[threadIdx.x]);
  if (lane == 0) warp_sums[warp + (plants("STATIC_SHARED_OVERRUN") ? 1 : 0)] = of_warp;
  if (plants("LOCAL_OVERRUN")) {
    unsigned local[2] = {};
    unsigned* volatile past_end = local + 2;
    __syncthreads();  // other stacks are in use meanwhile
    *past_end = 1;
  }
  if (plants("DIVERGENT_BARRIER") && threadIdx.x == 40) __syncwarp();
  if (!plants("MISSING_SYNC")) __syncthreads();

  if (threadIdx.x == 0) {
    unsigned of_block = 0;
    for (unsigned w = 0; w < kWarps; ++w) of_block += warp_sums[w];
    params.block_sums[blockIdx.x + (plants("OUT_OF_BOUNDS") ? 1 : 0)] = of_block;
    if (!plants("MISSING_FENCE")) __threadfence();
    is_last = atomicAdd(params.num_done, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (plants("CROSS_BLOCK_RACE") && threadIdx.x == 100) *params.last_writer = blockIdx.x;
  if (is_last && threadIdx.x == 0) {
    for (unsigned b = 0; b < gridDim.x; ++b) *params.sum += params.block_sums[b];
  }
}

int main(int argc, char** argv) {
  if (argc > 1) planted = argv[1];
  std::vector<unsigned> numbers(kBlocks * kPerBlock);
  unsigned num_odd_expected = 0;
  for (unsigned i = 0; i < numbers.size(); ++i) numbers[i] = i * 2654435761u >> 12;
  for (unsigned i = 0; i < numbers.size(); i += kPerThread) {
    num_odd_expected += (numbers[i] ^ numbers[i + 1] ^ numbers[i + 2] ^ numbers[i + 3]) & 1u;
  }
  std::vector<unsigned> block_sums(kBlocks);
  unsigned num_done = 0, sum = 0, num_odd = 0, last_writer = 0;

  structout::simt::launch(dim3(kBlocks), dim3(kThreads), kThreads * sizeof(unsigned), block_sum,
                          Params{numbers.data(), block_sums.data(), &num_done, &sum, &num_odd, &last_writer});

  for (int i = 0; plants("LEAK") && i < 100; ++i) *new volatile unsigned = sum;  // the stack may still point to some
  const unsigned expected = std::accumulate(numbers.begin(), numbers.end(), 0u);
  if (sum != expected || num_odd != num_odd_expected) {
    std::printf("sum %u, expected %u; odd %u, expected %u\n", sum, expected, num_odd, num_odd_expected);
    return 1;
  }
  std::puts("ok");
}
