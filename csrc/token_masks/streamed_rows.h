// Non-temporal stores for buffers that are larger than the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace structout::engine {

// A store to memory that is in no cache first reads what it overwrites. Non-temporal stores
// do not, so rows that no cache keeps anyway are written in half of the time. Rows that the
// caches do keep are faster without (Intel, Optimization Reference Manual, "Non-temporal
// stores").
class StreamedRows {
 public:
  // True above a fixed size, 16 MiB: rows of so many bytes in total are likely to leave
  // the caches before they are written again. The size is a constant because processors
  // tell how large their caches are, but not how many others share them.
  static bool is_better(size_t bytes) {
#if defined(__SSE2__)
    return bytes > size_t{16} << 20;
#else
    (void)bytes;
    return false;
#endif
  }

  static void copy(uint32_t* to, const uint32_t* from, size_t words) {
#if defined(__SSE2__)
    constexpr size_t kWords = sizeof(__m128i) / sizeof(uint32_t);
    size_t i = 0;
    for (; i < words && reinterpret_cast<uintptr_t>(to + i) % sizeof(__m128i) != 0; ++i) to[i] = from[i];
    for (; i + kWords <= words; i += kWords) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
    for (; i < words; ++i) to[i] = from[i];
#else
    std::memcpy(to, from, words * sizeof(uint32_t));
#endif
  }

  // Makes the rows visible to other threads and to devices.
  static void finish() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
  }
};

}  // namespace structout::engine
