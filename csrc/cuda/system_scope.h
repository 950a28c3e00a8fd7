// Memory operations that other devices can observe, for nvcc and, over
// simt/host_simt.h, for a C++ compiler.
#pragma once

#include "cuda/compat.h"

namespace structout::cuda {

#ifdef __CUDACC__

__device__ __forceinline__ void store_release_system(uint64_t* global, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(global)), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t load_acquire_system(const uint64_t* global) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(global)) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* global) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(global)) : "memory");
  return value;
}

__device__ __forceinline__ int64_t clock_ns() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Never called below compute capability 9.0: there is no multicast address there.
__device__ __forceinline__ void store_16_bytes_to_all(void* multicast, uint4 value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(multicast)),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
#else
  __trap();
#endif
}

// Orders stores to a multicast address before loads from the buffer's own address: they
// are two addresses of the same memory.
__device__ __forceinline__ void fence_multicast() {
  asm volatile("fence.proxy.alias;" ::: "memory");
  __threadfence_system();
}

#else

inline void store_release_system(uint64_t* address, uint64_t value) {
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}
inline uint64_t load_acquire_system(const uint64_t* address) { return __atomic_load_n(address, __ATOMIC_ACQUIRE); }
inline uint64_t load_relaxed(const uint64_t* address) { return __atomic_load_n(address, __ATOMIC_RELAXED); }
inline int64_t clock_ns() { return structout::simt::clock_ns(); }
inline void store_16_bytes_to_all(void* multicast, uint4 value) { structout::simt::Multicast::store(multicast, value); }
inline void fence_multicast() {}  // simt::Multicast stores to the buffers' own addresses

#endif

}  // namespace structout::cuda
