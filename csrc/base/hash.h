// 64-bit hashes for tables and for checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace structout::engine {

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

// Does not depend on the machine: files have it as their checksum.
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

// For tables of long rows. As in wyhash (Wang Yi, https://github.com/wangyi-fudan/wyhash), a
// multiplication takes 16 bytes, and chains of them do not wait for one another.
inline uint64_t hash_words(const uint32_t* words, size_t count) {
  constexpr size_t kChains = 4, kStep = 4 * kChains;
  uint64_t chains[kChains] = {1, 2, 3, 4};
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    uint64_t pairs[kChains][2];
    std::memcpy(pairs, words + i, sizeof pairs);
    for (size_t chain = 0; chain < kChains; ++chain) {
      auto product = static_cast<unsigned __int128>(pairs[chain][0] ^ 0x9E3779B97F4A7C15ull) *
                     (pairs[chain][1] ^ chains[chain] ^ 0x51ED270B7A1F9C4Dull);
      chains[chain] += uint64_t(product) ^ uint64_t(product >> 64);
    }
  }
  uint64_t hash = count;
  for (; i < count; ++i) hash = mix(hash, words[i]);
  for (uint64_t chain : chains) hash = mix(hash, chain);
  return mix(hash, hash >> 32);
}

}  // namespace structout::engine
