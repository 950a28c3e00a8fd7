// Compares every built-in of the harness with CUDA's documentation. The argument adds
// undefined behaviour, which must end the run with a message.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "plants.h"
#include "simt/host_simt.h"

namespace simt = structout::simt;

#define EXPECT_EQ(actual, expected)                                                                \
  do {                                                                                             \
    const auto a_ = (actual);                                                                      \
    const decltype(a_) e_ = (expected);                                                            \
    if (a_ != e_) {                                                                                \
      std::printf("%d: %s is %.17g, expected %.17g\n", __LINE__, #actual, static_cast<double>(a_), \
                  static_cast<double>(e_));                                                        \
      std::exit(1);                                                                                \
    }                                                                                              \
  } while (false)

__global__ void shuffles_read_the_documented_lane() {
  const int lane = threadIdx.x;
  EXPECT_EQ(__shfl_sync(~0u, lane, 5), 5);
  EXPECT_EQ(__shfl_sync(~0u, lane, lane + 3), (lane + 3) % 32);
  EXPECT_EQ(__shfl_sync(~0u, lane, 9, 8), lane / 8 * 8 + 1);
  EXPECT_EQ(__shfl_xor_sync(~0u, lane, 16), lane ^ 16);
  // A lane can read an earlier segment, but not a later one.
  EXPECT_EQ(__shfl_xor_sync(~0u, lane, 8, 8), lane & 8 ? lane ^ 8 : lane);
  EXPECT_EQ(__shfl_up_sync(~0u, lane, 1), lane == 0 ? 0 : lane - 1);
  EXPECT_EQ(__shfl_up_sync(~0u, lane, 3, 8), lane % 8 < 3 ? lane : lane - 3);
  EXPECT_EQ(__shfl_down_sync(~0u, lane, 1), lane == 31 ? 31 : lane + 1);
  EXPECT_EQ(__shfl_down_sync(~0u, lane, 3, 8), lane % 8 > 4 ? lane : lane + 3);
  EXPECT_EQ(__shfl_sync(~0u, 0.5f + lane, 7), 7.5f);
  EXPECT_EQ(__shfl_sync(~0u, -1.25 * lane, 7), -8.75);
  EXPECT_EQ(__shfl_sync(~0u, (1ull << 40) + lane, 7), (1ull << 40) + 7);
  EXPECT_EQ(__shfl_sync(~0u, -lane, 7), -7);
}

__global__ void votes_count_live_lanes_of_the_mask() {
  const unsigned lane = threadIdx.x;
  EXPECT_EQ(__ballot_sync(~0u, lane % 3 == 0), 0x49249249u);
  EXPECT_EQ(__ballot_sync(~0u, 256), ~0u);
  EXPECT_EQ(__any_sync(~0u, lane == 31), 1);
  EXPECT_EQ(__any_sync(~0u, false), 0);
  EXPECT_EQ(__all_sync(~0u, lane < 32), 1);
  EXPECT_EQ(__all_sync(~0u, lane < 31), 0);
  // Lanes of disjoint masks synchronize separately and may make different calls.
  if (lane < 16) {
    EXPECT_EQ(__ballot_sync(0x0000ffffu, true), 0xffffu);
    EXPECT_EQ(__shfl_xor_sync(0x0000ffffu, lane, 1), lane ^ 1);
  } else {
    EXPECT_EQ(__shfl_sync(0xffff0000u, lane, 16), 16u);
  }
  __syncwarp();
  if (lane >= 20) return;
  EXPECT_EQ(__ballot_sync(~0u, true), 0xfffffu);
  EXPECT_EQ(__all_sync(~0u, true), 1);
}

__global__ void exited_threads_are_not_awaited(unsigned* num_passed) {
  __shared__ unsigned of_block;
  if (threadIdx.x >= 40) return;
  if (threadIdx.x == 0) of_block = 7;
  __syncthreads();
  atomicAdd(num_passed, of_block);
}

// 40 threads, so the second warp is not full.
__global__ void shapes(unsigned* visits) {
  EXPECT_EQ(gridDim.x * 100 + gridDim.y * 10 + gridDim.z, 234u);
  EXPECT_EQ(blockDim.x * 100 + blockDim.y * 10 + blockDim.z, 542u);
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  ++visits[block * 40 + thread];
  EXPECT_EQ(__ballot_sync(~0u, true), thread < 32 ? ~0u : 0xffu);
}

__global__ void dynamic_shared_memory_starts_unwritten(unsigned* sum) {
  unsigned char* bytes = static_cast<unsigned char*>(simt::dynamic_shared());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % 16, 0u);
  EXPECT_EQ(int{bytes[threadIdx.x]}, 0xCB);
  bytes[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(sum, bytes[0] + bytes[31]);
}

struct Cells {
  int lowest, highest, signed_sum;
  unsigned bits_set, bits_left, last;
  unsigned long long wide_sum, claimed_by;
  float float_sum;
};

__global__ void update(Cells* cells) {
  const int i = threadIdx.x;
  atomicMin(&cells->lowest, 3 - i);
  atomicMax(&cells->highest, i - 3);
  atomicAdd(&cells->signed_sum, -1);
  atomicAdd(&cells->wide_sum, 1ull << 33);
  atomicAdd(&cells->float_sum, 0.5f);
  atomicOr(&cells->bits_set, 1u << i % 32);
  atomicAnd(&cells->bits_left, ~(1u << i % 32));
  if (i == 63) EXPECT_EQ(atomicExch(&cells->last, 63), 0u);
  EXPECT_EQ(atomicCAS(&cells->claimed_by, 0, 100 + i), i == 0 ? 0u : 100u);
}

// Threads take turns, the last thread first. The others poll until it is their turn.
__global__ void take_turns(unsigned* turn, unsigned* num_turns) {
  while (atomicAdd(turn, 0) != blockDim.x - 1 - threadIdx.x) __nanosleep(100);
  ++*num_turns;
  __threadfence();
  atomicAdd(turn, 1);
}

struct Rank {
  unsigned inbox[64] = {};
  unsigned flag = 0;
  unsigned sum = 0;
};

// Fills the peer's inbox, raises its flag, waits for its own flag and reads its own
// inbox.
__global__ void exchange(Rank* self, Rank* peer, unsigned number) {
  peer->inbox[threadIdx.x] = number;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    atomicExch(&peer->flag, 1);
    while (atomicAdd(&self->flag, 0) == 0) __nanosleep(100);
    __threadfence_system();
  }
  __syncthreads();
  atomicAdd(&self->sum, self->inbox[threadIdx.x]);
}

__global__ void store_to_all(char* multicast) {
  simt::Multicast::store(multicast + 16 * threadIdx.x, make_uint4(threadIdx.x, 1, 2, 3));
}

__global__ void bit_operations() {
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(0x50), 5);
  EXPECT_EQ(__ffsll(1ll << 40), 41);
  EXPECT_EQ(__popc(0xf0f0u), 8);
  EXPECT_EQ(__popcll(~0ull), 64);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__clz(-1), 0);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__brev(0x00000003u), 0xc0000000u);
  EXPECT_EQ(__float_as_uint(-2.0f), 0xc0000000u);
  EXPECT_EQ(__float_as_int(1.0f), 0x3f800000);
  EXPECT_EQ(__uint_as_float(0xc0000000u), -2.0f);
  EXPECT_EQ(__int_as_float(0x3f800000), 1.0f);
}

__global__ void undefined() {
  if (plants("SHUFFLE_FROM_EXITED_LANE")) {
    if (threadIdx.x == 5) return;
    __shfl_sync(~0u, 1, 5);
  }
  if (plants("SHUFFLE_FROM_OUTSIDE_MASK") && threadIdx.x < 4) __shfl_sync(0xfu, 1, 4);
  if (plants("LANE_OUTSIDE_ITS_MASK")) __ballot_sync(0x7fffffffu, 1);
  if (plants("DIFFERENT_CALLS")) threadIdx.x < 16 ? __any_sync(~0u, 1) : __all_sync(~0u, 1);
  if (plants("SHUFFLE_FOR_A_BARRIER")) {
    __shared__ unsigned of_lanes[32];
    of_lanes[threadIdx.x] = threadIdx.x;
    const unsigned lane = __shfl_xor_sync(~0u, threadIdx.x, 1);
    EXPECT_EQ(of_lanes[lane], lane);
  }
  if (plants("DIFFERENT_MASKS")) __syncwarp(threadIdx.x < 16 ? 0x1ffffu : ~0u);
}

bool is_refused(dim3 grid, dim3 block) {
  try {
    simt::launch(grid, block, 0, undefined);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

int main(int argc, char** argv) {
  if (argc > 1) planted = argv[1];
  simt::launch(1, 32, 0, undefined);
  simt::launch(1, 32, 0, shuffles_read_the_documented_lane);
  simt::launch(1, 32, 0, votes_count_live_lanes_of_the_mask);
  simt::launch(1, 1, 0, bit_operations);

  unsigned passed = 0;
  simt::launch(1, 64, 0, exited_threads_are_not_awaited, &passed);
  EXPECT_EQ(passed, 7u * 40);

  std::vector<unsigned> visits(24 * 40);
  simt::launch(dim3(2, 3, 4), dim3(5, 4, 2), 0, shapes, visits.data());
  for (unsigned count : visits) EXPECT_EQ(count, 1u);

  unsigned sum = 0;
  simt::launch(3, 32, 32, dynamic_shared_memory_starts_unwritten, &sum);
  EXPECT_EQ(sum, 6u);

  Cells cells = {0, 0, 0, 0, ~0u, 0, 0, 0, 0};
  simt::launch(1, 64, 0, update, &cells);
  EXPECT_EQ(cells.lowest, -60);
  EXPECT_EQ(cells.highest, 60);
  EXPECT_EQ(cells.signed_sum, -64);
  EXPECT_EQ(cells.wide_sum, 64ull << 33);
  EXPECT_EQ(cells.float_sum, 32.0f);
  EXPECT_EQ(cells.bits_set, ~0u);
  EXPECT_EQ(cells.bits_left, 0u);
  EXPECT_EQ(cells.last, 63u);
  EXPECT_EQ(cells.claimed_by, 100u);

  unsigned turn = 0, num_turns = 0;
  simt::launch(1, 40, 0, take_turns, &turn, &num_turns);
  EXPECT_EQ(num_turns, 40u);

  Rank ranks[2];
  std::thread other([&] { simt::launch(1, 64, 0, exchange, &ranks[1], &ranks[0], 3u); });
  simt::launch(1, 64, 0, exchange, &ranks[0], &ranks[1], 5u);
  other.join();
  EXPECT_EQ(ranks[0].sum, 3u * 64);
  EXPECT_EQ(ranks[1].sum, 5u * 64);

  std::vector<uint4> buffers[2] = {std::vector<uint4>(32), std::vector<uint4>(32)};
  const simt::Multicast multicast(
      {reinterpret_cast<char*>(buffers[0].data()), reinterpret_cast<char*>(buffers[1].data())}, 32 * sizeof(uint4));
  simt::launch(1, 32, 0, store_to_all, multicast.address());
  for (const std::vector<uint4>& buffer : buffers) EXPECT_EQ(buffer[31].x * 10 + buffer[31].w, 313u);
  if (plants("NO_MULTICAST_ADDRESS")) simt::launch(1, 32, 0, store_to_all, multicast.address() + 16);

  EXPECT_EQ(is_refused(1, dim3(1025)), true);
  EXPECT_EQ(is_refused(1, dim3(32, 0)), true);
  EXPECT_EQ(is_refused(dim3(1, 65536), 32), true);
  std::puts("ok");
}
