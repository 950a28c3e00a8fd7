// A 64-bit hash for tables and for checksums. It does not depend on the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace structout::engine {

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

inline uint64_t hash_bytes(const uint8_t* data, size_t size, uint64_t seed = 0) {
  uint64_t hash = mix(seed ^ 0x51ED270B7A1F9C4Dull, size);
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, sizeof word);
    if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) word = __builtin_bswap64(word);
    hash = mix(hash, word);
  }
  for (; i < size; ++i) hash = mix(hash, data[i]);
  return mix(hash, hash >> 32);
}

}  // namespace structout::engine
