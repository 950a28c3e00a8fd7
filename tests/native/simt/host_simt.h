// Runs CUDA kernels on the CPU, for tests: g++ compiles the unchanged .cu sources over
// this header, with or without sanitizers.
//
// A CUDA thread is a fiber, which has its own stack and is switched in user space. The
// fibers of a block take turns in thread order, each until it waits for others, so a
// run is deterministic. Blocks run one after another, each on a new OS thread, whose
// thread-local storage serves as the block's __shared__ memory. Several OS threads may
// launch kernels at the same time, as the ranks of a collective do.
//
// The sanitizers' view:
// - ThreadSanitizer treats every CUDA thread as a thread. Only what orders memory in
//   CUDA orders their accesses, not the turns of this run nor the order of its blocks.
//   So it reports a data race even where the run's order hid it. __syncthreads and
//   __syncwarp order memory; shuffles and votes do not; an atomic acquires, and
//   releases too once its thread has called __threadfence.
// - AddressSanitizer knows every stack and the end of dynamic shared memory. (It warns
//   once that it does not fully support swapcontext. The harness announces every switch
//   to it, so the warning does not apply.)
// - UndefinedBehaviorSanitizer knows the bounds of __shared__ arrays and the alignment
//   of vector types.
//
// All ranks share one clock and may share a Multicast. A thread that polls memory must
// call __nanosleep, which lets the other threads run. A block cannot wait for a later
// block.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <vector>

#include "simt/host_simt_block.h"
#include "simt/ptx_launch.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local

// clang-format off
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
// clang-format on
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
using cudaStream_t = void*;

namespace structout::simt {

inline void* dynamic_shared() { return current_block->dynamic_shared(); }

inline void launch_blocks(dim3 grid, dim3 block, Launch launch) {
  const uint64_t num_blocks = uint64_t{grid.x} * grid.y * grid.z;
  const uint64_t num_threads = uint64_t{block.x} * block.y * block.z;
  if (num_blocks == 0 || grid.y > 65535 || grid.z > 65535 || num_threads == 0 || num_threads > kMaxBlockThreads) {
    throw std::invalid_argument("host_simt: CUDA refuses a grid or a block of this size");
  }
  for (uint64_t i = 0; i < num_blocks; ++i) {
    const uint3 index = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)};
    std::thread os_thread([=, &launch] {
      gridDim = grid;
      blockDim = block;
      blockIdx = index;
      Block(launch).run();
    });
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);  // joining must not order this block before the next
    os_thread.join();
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
  __tsan_acquire(&launch);
  for (void*& thread : launch.retired_tsan_threads) retire_tsan_thread(thread, nullptr);
}

// The dynamic shared memory that each kernel may use: none until it is allowed. `count`
// is the number of calls that allowed some.
struct DynamicSharedLimits {
  std::map<const void*, int64_t> of_kernel;
  int count = 0;
};

inline DynamicSharedLimits& dynamic_shared_limits() {
  static DynamicSharedLimits limits;
  return limits;
}

template <class Kernel>
void allow_dynamic_shared(Kernel* kernel, int64_t bytes) {
  dynamic_shared_limits().of_kernel[reinterpret_cast<const void*>(kernel)] = bytes;
  ++dynamic_shared_limits().count;
}

template <class Kernel>
void check_dynamic_shared(Kernel* kernel, size_t bytes) {
  const auto& limits = dynamic_shared_limits().of_kernel;
  const auto limit = limits.find(reinterpret_cast<const void*>(kernel));
  if (bytes > 0 && (limit == limits.end() || static_cast<int64_t>(bytes) > limit->second)) {
    throw std::invalid_argument("host_simt: CUDA refuses so much dynamic shared memory, unless allowed");
  }
}

// A second address for several buffers, as NVLink SHARP provides it: a store to it goes
// to all of them.
class Multicast {
 public:
  Multicast(std::vector<char*> buffers, size_t bytes) : buffers_(std::move(buffers)), bytes_(bytes) {
    address_ = static_cast<char*>(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    all().push_back(this);
  }
  ~Multicast() {
    all().erase(std::find(all().begin(), all().end(), this));
    munmap(address_, bytes_);
  }
  Multicast(const Multicast&) = delete;
  Multicast& operator=(const Multicast&) = delete;

  char* address() const { return address_; }

  static void store(void* address, const uint4& value) {
    for (const Multicast* multicast : all()) {
      const size_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(multicast->address_);
      if (offset >= multicast->bytes_) continue;
      for (char* buffer : multicast->buffers_) *reinterpret_cast<uint4*>(buffer + offset) = value;
      return;
    }
    fail("%p is no multicast address", address);
  }

  // The addresses that a store to `multicast` reaches; 0 if it is no multicast address.
  static int find_targets(uint64_t multicast, uint64_t* targets) {
    for (const Multicast* each : all()) {
      const size_t offset = multicast - reinterpret_cast<uintptr_t>(each->address_);
      if (offset >= each->bytes_) continue;
      for (char* buffer : each->buffers_) *targets++ = reinterpret_cast<uintptr_t>(buffer + offset);
      return static_cast<int>(each->buffers_.size());
    }
    return 0;
  }

 private:
  // Must not change while a kernel runs.
  static std::vector<const Multicast*>& all() {
    static std::vector<const Multicast*> multicasts;
    return multicasts;
  }

  std::vector<char*> buffers_;
  char* address_;
  size_t bytes_;
};

// Launches in the machine that executes PTX, which copies the arguments as CUDA does.
template <class... Parameters>
void launch_ptx(dim3 grid, dim3 block, unsigned cluster_blocks, size_t dynamic_shared_bytes,
                void (*kernel)(Parameters...), std::common_type_t<Parameters>... parameters) {
  const void* arguments[] = {&parameters...};
  PtxBackend::get().launch(reinterpret_cast<const void*>(kernel), grid, block, cluster_blocks, dynamic_shared_bytes,
                           arguments, Multicast::find_targets);
}

// kernel<<<grid, block, dynamic_shared_bytes>>>(args...) and a synchronization.
template <class Kernel, class... Args>
void launch(dim3 grid, dim3 block, size_t dynamic_shared_bytes, Kernel kernel, Args... args) {
  if constexpr (std::is_pointer_v<Kernel>) {
    if (PtxBackend::get().is_on()) return launch_ptx(grid, block, 1, dynamic_shared_bytes, kernel, args...);
  }
  auto thread = [&] { kernel(args...); };
  const auto run_thread = [](void* closure) { (*static_cast<decltype(thread)*>(closure))(); };
  launch_blocks(grid, block, {dynamic_shared_bytes, run_thread, &thread});
}

// Runs a grid with a cluster of blocks for each block of the grid. Fibers run a cluster as
// one block of up to 1,024 threads, in which y is the rank.
template <class Kernel, class... Args>
void launch_clusters(unsigned num_clusters, unsigned cluster_blocks, unsigned threads, size_t dynamic_shared_bytes,
                     Kernel kernel, Args... args) {
  if (PtxBackend::get().is_on()) {
    return launch_ptx(dim3(num_clusters * cluster_blocks), dim3(threads), cluster_blocks, dynamic_shared_bytes, kernel,
                      args...);
  }
  const dim3 block(std::min(threads, kMaxBlockThreads / cluster_blocks), cluster_blocks);
  launch(dim3(num_clusters), block, dynamic_shared_bytes * cluster_blocks, kernel, args...);
}

// The clock that all devices share.
inline int64_t clock_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

STRUCTOUT_SIMT_UNTRACED inline uint64_t wait_in(const Wait& call) {
  current_thread->wait = call;
  current_block->suspend();
  return current_thread->wait.value;
}

inline uint64_t wait_in_warp(const Wait& call) {
  if ((call.mask >> current_thread->lane() & 1u) == 0) {
    fail("thread %u is not in the mask of its %s", current_thread->id, call.description().c_str());
  }
  return wait_in(call);
}

inline unsigned vote(const char* name, unsigned mask, bool predicate) {
  return static_cast<unsigned>(wait_in_warp({name, mask, predicate}));
}

template <class To, class From>
To bit_cast(From from) {
  To to{};
  std::memcpy(&to, &from, std::min(sizeof(to), sizeof(from)));
  return to;
}

// The segment of `width` lanes that contains the current lane, within which a shuffle
// works.
inline int segment_begin(int width) { return static_cast<int>(current_thread->lane()) & ~(width - 1); }
inline int segment_end(int width) { return segment_begin(width) + width; }

// A lane whose source lies outside [begin, end) reads its own value.
template <class T>
T shuffle(const char* name, unsigned mask, T value, int source, int begin, int end) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= sizeof(uint64_t), "CUDA shuffles numbers of up to 8 bytes");
  const bool is_inside = begin <= source && source < end;
  const unsigned lane = is_inside ? static_cast<unsigned>(source) : current_thread->lane();
  return bit_cast<T>(wait_in_warp({name, mask, bit_cast<uint64_t>(value), lane}));
}

template <class T, class Update>
T update_atomically(T* address, Update update) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long> ||
                    std::is_same_v<T, float>,
                "CUDA has no such atomic");
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  while (true) {
    T desired = update(old);
    if (current_thread->has_fenced) {
      if (__atomic_compare_exchange(address, &old, &desired, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return old;
    } else {
      if (__atomic_compare_exchange(address, &old, &desired, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return old;
    }
  }
}

// The built-ins that CUDA declares in the global namespace.
namespace builtins {

inline void __syncthreads() { wait_in({"__syncthreads", 0, 0, kVote, /*orders_memory=*/true}); }
inline void __syncwarp(unsigned mask = kAllLanes) {
  wait_in_warp({"__syncwarp", mask, 0, kVote, /*orders_memory=*/true});
}

inline unsigned __ballot_sync(unsigned mask, int predicate) { return vote("__ballot_sync", mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return vote("__any_sync", mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return vote("__all_sync", mask, predicate == 0) == 0; }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
  return shuffle("__shfl_sync", mask, value, segment_begin(width) + (source & (width - 1)), 0, warpSize);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize) {
  return shuffle("__shfl_xor_sync", mask, value, int(current_thread->lane()) ^ lanes, 0, segment_end(width));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  return shuffle("__shfl_up_sync", mask, value, int(current_thread->lane() - delta), segment_begin(width), warpSize);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  return shuffle("__shfl_down_sync", mask, value, int(current_thread->lane() + delta), 0, segment_end(width));
}

// common_type_t keeps the value out of deduction, so that it converts to the address's
// type.
template <class T>
T atomicAdd(T* address, std::common_type_t<T> value) {
  return update_atomically(address, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMax(T* address, std::common_type_t<T> value) {
  return update_atomically(address, [=](T old) { return std::max(old, value); });
}
template <class T>
T atomicMin(T* address, std::common_type_t<T> value) {
  return update_atomically(address, [=](T old) { return std::min(old, value); });
}
template <class T>
T atomicOr(T* address, std::common_type_t<T> value) {
  return update_atomically(address, [=](T old) { return old | value; });
}
template <class T>
T atomicAnd(T* address, std::common_type_t<T> value) {
  return update_atomically(address, [=](T old) { return old & value; });
}
template <class T>
T atomicExch(T* address, std::common_type_t<T> value) {
  return update_atomically(address, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* address, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return update_atomically(address, [=](T old) { return old == expected ? value : old; });
}

inline void __threadfence() { current_thread->has_fenced = true; }
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) {
  current_block->suspend();
  std::this_thread::yield();  // another rank may have to run first
}

template <class T>
T __ldg(const T* address) {
  return *address;
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline unsigned __brev(unsigned bits) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (bits >> i & 1u) << (31 - i);
  return reversed;
}

inline unsigned __float_as_uint(float value) { return bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return bit_cast<int>(value); }
inline float __uint_as_float(unsigned bits) { return bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return bit_cast<float>(bits); }

}  // namespace builtins
}  // namespace structout::simt

using namespace structout::simt::builtins;
