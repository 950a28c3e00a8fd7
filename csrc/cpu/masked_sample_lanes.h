// What masked_sample_row.h does in vector instructions by name: Philox for many tokens at once, and finding the words
// of a mask that are not 0. Included as it is, once for each set of instructions. STRUCTOUT_VECTOR_BITS says which (g++
// reads the whole file before it heeds a target pragma, so __AVX2__ would not).

constexpr int64_t kBlock = 64;

// The noise of 64 tokens in a row: bits[w][g] is that of token 4 * g + w.
struct NoiseBlock {
  alignas(64) uint32_t bits[4][16];

  uint32_t of(int i) const { return bits[i & 3][i >> 2]; }
  uint64_t at_most(uint32_t bound) const;  // bit i: that of token i is
};

#if STRUCTOUT_VECTOR_BITS == 512

struct HighLow {
  __m512i high, low;
};

inline HighLow multiply(__m512i a, __m512i b) {
  const __m512i even = _mm512_mul_epu32(a, b);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
  return {_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd),
          _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))};
}

// Philox of 16 counters that differ in their third word.
inline void philox_16(int64_t seed, int64_t position, __m512i groups, __m512i out[4]) {
  const __m512i multiplier_0 = _mm512_set1_epi32(static_cast<int>(0xD2511F53u));
  const __m512i multiplier_1 = _mm512_set1_epi32(static_cast<int>(0xCD9E8D57u));
  __m512i c0 = _mm512_set1_epi32(static_cast<int>(position)), c1 = _mm512_set1_epi32(static_cast<int>(position >> 32));
  __m512i c2 = groups, c3 = _mm512_setzero_si512();
  uint32_t key_0 = static_cast<uint32_t>(seed), key_1 = static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32);
  for (int round = 0; round < 10; ++round) {
    const HighLow product_0 = multiply(c0, multiplier_0), product_1 = multiply(c2, multiplier_1);
    c0 = _mm512_ternarylogic_epi32(product_1.high, c1, _mm512_set1_epi32(static_cast<int>(key_0)), 0x96);
    c2 = _mm512_ternarylogic_epi32(product_0.high, c3, _mm512_set1_epi32(static_cast<int>(key_1)), 0x96);
    c1 = product_1.low;
    c3 = product_0.low;
    key_0 += 0x9E3779B9u;
    key_1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

inline NoiseBlock noise_of_block(int64_t seed, int64_t position, int64_t block) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i words[4];
  philox_16(seed, position, _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(16 * block)), lane), words);
  NoiseBlock noise;
  for (int w = 0; w < 4; ++w) _mm512_store_si512(noise.bits[w], words[w]);
  return noise;
}

// The noise of 16 tokens anywhere.
inline void noise_of_16(int64_t seed, int64_t position, const int32_t* tokens, uint32_t* bits) {
  const __m512i token = _mm512_loadu_si512(tokens);
  __m512i words[4];
  philox_16(seed, position, _mm512_srli_epi32(token, 2), words);
  const __m512i word = _mm512_and_si512(token, _mm512_set1_epi32(3));
  __m512i chosen = words[0];
  for (int w = 1; w < 4; ++w) {
    chosen = _mm512_mask_mov_epi32(chosen, _mm512_cmpeq_epi32_mask(word, _mm512_set1_epi32(w)), words[w]);
  }
  _mm512_storeu_si512(bits, chosen);
}

// Bit g: bits[g] <= bound.
inline uint32_t lanes_at_most(const uint32_t* bits, uint32_t bound) {
  return _mm512_cmple_epu32_mask(_mm512_load_si512(bits), _mm512_set1_epi32(static_cast<int>(bound)));
}

// Bit 4 * g for bit g.
inline uint64_t spread(uint32_t groups) { return _pdep_u64(groups, 0x1111111111111111u); }

inline uint32_t nonzero_of_16(const uint32_t* words) {
  const __m512i block = _mm512_loadu_si512(words);
  return _mm512_test_epi32_mask(block, block);
}

#elif STRUCTOUT_VECTOR_BITS == 256

struct HighLow {
  __m256i high, low;
};

inline HighLow multiply(__m256i a, __m256i b) {
  const __m256i even = _mm256_mul_epu32(a, b);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
  return {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA),
          _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)};
}

// Philox of 8 counters that differ in their third word.
inline void philox_8(int64_t seed, int64_t position, __m256i groups, __m256i out[4]) {
  const __m256i multiplier_0 = _mm256_set1_epi32(static_cast<int>(0xD2511F53u));
  const __m256i multiplier_1 = _mm256_set1_epi32(static_cast<int>(0xCD9E8D57u));
  __m256i c0 = _mm256_set1_epi32(static_cast<int>(position)), c1 = _mm256_set1_epi32(static_cast<int>(position >> 32));
  __m256i c2 = groups, c3 = _mm256_setzero_si256();
  uint32_t key_0 = static_cast<uint32_t>(seed), key_1 = static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32);
  for (int round = 0; round < 10; ++round) {
    const HighLow product_0 = multiply(c0, multiplier_0), product_1 = multiply(c2, multiplier_1);
    c0 = _mm256_xor_si256(_mm256_xor_si256(product_1.high, c1), _mm256_set1_epi32(static_cast<int>(key_0)));
    c2 = _mm256_xor_si256(_mm256_xor_si256(product_0.high, c3), _mm256_set1_epi32(static_cast<int>(key_1)));
    c1 = product_1.low;
    c3 = product_0.low;
    key_0 += 0x9E3779B9u;
    key_1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

inline NoiseBlock noise_of_block(int64_t seed, int64_t position, int64_t block) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  NoiseBlock noise;
  for (int half = 0; half < 2; ++half) {
    __m256i words[4];
    const int first_group = static_cast<int>(16 * block + 8 * half);
    philox_8(seed, position, _mm256_add_epi32(_mm256_set1_epi32(first_group), lane), words);
    for (int w = 0; w < 4; ++w) _mm256_store_si256(reinterpret_cast<__m256i*>(noise.bits[w] + 8 * half), words[w]);
  }
  return noise;
}

inline void noise_of_16(int64_t seed, int64_t position, const int32_t* tokens, uint32_t* bits) {
  for (int half = 0; half < 2; ++half) {
    const __m256i token = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tokens + 8 * half));
    __m256i words[4];
    philox_8(seed, position, _mm256_srli_epi32(token, 2), words);
    const __m256i word = _mm256_and_si256(token, _mm256_set1_epi32(3));
    __m256i chosen = words[0];
    for (int w = 1; w < 4; ++w) {
      chosen = _mm256_blendv_epi8(chosen, words[w], _mm256_cmpeq_epi32(word, _mm256_set1_epi32(w)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits + 8 * half), chosen);
  }
}

inline uint32_t lanes_at_most(const uint32_t* bits, uint32_t bound) {
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(bound));
  uint32_t lanes = 0;
  for (int half = 0; half < 2; ++half) {
    const __m256i here = _mm256_load_si256(reinterpret_cast<const __m256i*>(bits + 8 * half));
    const __m256i is_at_most = _mm256_cmpeq_epi32(_mm256_min_epu32(here, limit), here);
    lanes |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_at_most))) << (8 * half);
  }
  return lanes;
}

inline uint64_t spread(uint32_t groups) { return _pdep_u64(groups, 0x1111111111111111u); }

#else

inline NoiseBlock noise_of_block(int64_t seed, int64_t position, int64_t block) {
  NoiseBlock noise;
  for (int g = 0; g < 16; ++g) {
    const PhiloxWords words = noise_words(seed, position, static_cast<uint32_t>(16 * block + g));
    for (int w = 0; w < 4; ++w) noise.bits[w][g] = words.w[w];
  }
  return noise;
}

inline void noise_of_16(int64_t seed, int64_t position, const int32_t* tokens, uint32_t* bits) {
  for (int i = 0; i < 16; ++i) bits[i] = noise_bits(seed, position, tokens[i]);
}

inline uint32_t lanes_at_most(const uint32_t* bits, uint32_t bound) {
  uint32_t lanes = 0;
  for (int g = 0; g < 16; ++g) lanes |= static_cast<uint32_t>(bits[g] <= bound) << g;
  return lanes;
}

inline uint64_t spread(uint32_t groups) {
  uint64_t spread_out = 0;
  for (int g = 0; g < 16; ++g) spread_out |= static_cast<uint64_t>(groups >> g & 1) << (4 * g);
  return spread_out;
}

#endif

// Most blocks have no such token, so that is found out first.
inline uint64_t NoiseBlock::at_most(uint32_t bound) const {
  uint32_t groups[4];
  for (int w = 0; w < 4; ++w) groups[w] = lanes_at_most(bits[w], bound);
  if ((groups[0] | groups[1] | groups[2] | groups[3]) == 0) return 0;
  return spread(groups[0]) | spread(groups[1]) << 1 | spread(groups[2]) << 2 | spread(groups[3]) << 3;
}

#if STRUCTOUT_VECTOR_BITS != 512
inline uint32_t nonzero_of_16(const uint32_t* words) {
  uint32_t found = 0;
  for (int i = 0; i < 16; ++i) found |= static_cast<uint32_t>(words[i] != 0) << i;
  return found;
}
#endif

// visit(i, words[i]) for the words that are not 0, as long as it returns true.
template <class Visit>
void for_each_nonzero(const uint32_t* words, int64_t count, const Visit& visit) {
  for (int64_t first = 0; first < count; first += 16) {
    uint32_t last_words[16] = {};
    const uint32_t* here = words + first;
    if (count - first < 16) here = std::copy_n(here, count - first, last_words) - (count - first);
    for (uint32_t nonzero = nonzero_of_16(here); nonzero != 0; nonzero &= nonzero - 1) {
      const int i = __builtin_ctz(nonzero);
      if (!visit(first + i, here[i])) return;
    }
  }
}
