// Definitions with which kernel sources compile both with nvcc and, over
// simt/host_simt.h, with a C++ compiler.
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include <cstdint>

#define STRUCTOUT_LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)

// Assembly, because the compiler would merge a plain vector store with the predicated
// scalar stores of the same value beside it.
__device__ __forceinline__ void store_16_bytes(void* global, uint4 value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// Assembly, because the compiler would move a plain load to where its value is needed.
__device__ __forceinline__ uint4 load_16_bytes(const void* global) {
  uint4 value;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(__cvta_generic_to_global(global))
               : "memory");
  return value;
}

// The smaller low half of two words, and the smaller high half.
__device__ __forceinline__ uint32_t min_of_halves(uint32_t a, uint32_t b) { return __vminu2(a, b); }

// A value that other threads may be changing atomically.
__device__ __forceinline__ unsigned load_relaxed(const unsigned* address) {
  return *static_cast<const volatile unsigned*>(address);
}

// A kernel's static and dynamic shared memory may exceed 48 KB only after this call.
template <class Kernel>
void allow_dynamic_shared(Kernel* kernel, int64_t bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

#else

#include "simt/host_simt.h"

#define STRUCTOUT_LAUNCH(kernel, grid, block, stream, ...) structout::simt::launch(grid, block, 0, kernel, __VA_ARGS__)

inline uint4 load_16_bytes(const void* global) { return *static_cast<const uint4*>(global); }

inline void store_16_bytes(void* global, uint4 value) { *static_cast<uint4*>(global) = value; }

inline uint32_t min_of_halves(uint32_t a, uint32_t b) {
  const uint32_t low_a = a & 0xffffu, low_b = b & 0xffffu, high_a = a >> 16, high_b = b >> 16;
  return (high_a < high_b ? high_a : high_b) << 16 | (low_a < low_b ? low_a : low_b);
}

inline unsigned load_relaxed(const unsigned* address) { return __atomic_load_n(address, __ATOMIC_RELAXED); }

using structout::simt::allow_dynamic_shared;

#endif

__device__ __forceinline__ bool is_16_byte_aligned(const void* pointer) {
  return (reinterpret_cast<uintptr_t>(pointer) & 15u) == 0;
}

namespace structout::cuda {

constexpr unsigned kWholeWarp = ~0u;
constexpr int kLanes = 32;

}  // namespace structout::cuda
