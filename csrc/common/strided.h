// Per-row arguments with any stride, 0 included: a scalar expanded to all rows.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define STRUCTOUT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define STRUCTOUT_HOST_DEVICE inline __attribute__((always_inline))  // also into functions compiled for AVX
#endif

namespace structout {

template <class T>
struct Strided {
  const T* values;  // null: the argument is absent
  int64_t stride;

  STRUCTOUT_HOST_DEVICE T at(int64_t i) const { return values[i * stride]; }
  STRUCTOUT_HOST_DEVICE T at(int64_t i, T if_absent) const { return values == nullptr ? if_absent : at(i); }
};

// Per-row integers of type int32 or int64, with any stride.
struct StridedIntegers {
  const void* values;  // null: the argument is absent
  int64_t stride;
  bool is_int64;

  STRUCTOUT_HOST_DEVICE int64_t at(int64_t i) const {
    return is_int64 ? static_cast<const int64_t*>(values)[i * stride] : static_cast<const int32_t*>(values)[i * stride];
  }
};

}  // namespace structout
