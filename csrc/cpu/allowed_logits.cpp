#include "cpu/allowed_logits.h"

#include <algorithm>
#include <cstring>

namespace structout::cpu {
namespace {

// A mask word that allows at least this many of its 32 tokens is sent whole, as one
// run.
constexpr int kMinAllowedForWholeWord = 24;

// Calls visit(first, count) for the runs of tokens to send, in ascending order: all
// allowed tokens and a few others.
template <class Visit>
void for_each_allowed_run(const MaskedLogits& shard, int64_t row, const Visit& visit) {
  const int64_t begin = shard.vocab_begin, end = shard.vocab_end;
  const MaskRow mask = shard.mask_of(row);
  if (mask.is_free) {
    if (begin < end) visit(begin, end - begin);
    return;
  }
  for (int64_t i = begin / kBitsPerWord; i < mask.words_within(end); ++i) {
    uint32_t word = mask.words[i];
    if (word == 0) continue;
    const int64_t first = i * kBitsPerWord;
    const int64_t lowest = std::max(first, begin), past = std::min(first + kBitsPerWord, end);
    word &= kAllAllowed << (lowest - first);
    word &= kAllAllowed >> (first + kBitsPerWord - past);
    if (__builtin_popcount(word) >= kMinAllowedForWholeWord) {
      visit(lowest, past - lowest);
      continue;
    }
    for (; word != 0; word &= word - 1) visit(first + __builtin_ctz(word), int64_t{1});
  }
}

// Calls move(logits, packed, count) for every run.
template <class Logits, class Packed, class Move>
void move_rows(const MaskedLogits& shard, Logits* logits, const std::vector<int64_t>& offsets, Packed* packed,
               const ParallelFor& parallel_for, const Move& move) {
  parallel_for(shard.num_rows, [&](int64_t row) {
    Logits* const row_logits = logits + row * shard.row_stride;
    Packed* next = packed + offsets[row];
    for_each_allowed_run(shard, row, [&](int64_t first, int64_t count) {
      move(row_logits + (first - shard.vocab_begin), next, count);
      next += count;
    });
  });
}

template <class Element>
void copy(const Element* from, Element* to, int64_t count) {
  if (count == 1) {  // most runs: a store is cheaper than a call of memcpy
    *to = *from;
  } else {
    memcpy(to, from, static_cast<size_t>(count) * sizeof(Element));
  }
}

template <class Element>
void pack(const MaskedLogits& shard, const std::vector<int64_t>& offsets, void* packed,
          const ParallelFor& parallel_for) {
  move_rows(shard, static_cast<const Element*>(shard.logits), offsets, static_cast<Element*>(packed), parallel_for,
            [](const Element* logits, Element* to, int64_t count) { copy(logits, to, count); });
}

template <class Element>
void unpack(const MaskedLogits& shard, void* logits, const std::vector<int64_t>& offsets, const void* packed,
            const ParallelFor& parallel_for) {
  move_rows(shard, static_cast<Element*>(logits), offsets, static_cast<const Element*>(packed), parallel_for,
            [](Element* to, const Element* from, int64_t count) { copy(from, to, count); });
}

}  // namespace

std::vector<int64_t> packed_offsets(const MaskedLogits& shard, const ParallelFor& parallel_for) {
  std::vector<int64_t> offsets(static_cast<size_t>(shard.num_rows) + 1, 0);
  parallel_for(shard.num_rows, [&](int64_t row) {
    for_each_allowed_run(shard, row, [&](int64_t, int64_t count) { offsets[row + 1] += count; });
  });
  for (int64_t row = 0; row < shard.num_rows; ++row) offsets[row + 1] += offsets[row];
  return offsets;
}

void pack_allowed(const MaskedLogits& shard, const std::vector<int64_t>& offsets, void* packed,
                  const ParallelFor& parallel_for) {
  shard.format == FloatFormat::kFloat32 ? pack<uint32_t>(shard, offsets, packed, parallel_for)
                                        : pack<uint16_t>(shard, offsets, packed, parallel_for);
}

void unpack_allowed(const MaskedLogits& shard, void* logits, const std::vector<int64_t>& offsets, const void* packed,
                    const ParallelFor& parallel_for) {
  shard.format == FloatFormat::kFloat32 ? unpack<uint32_t>(shard, logits, offsets, packed, parallel_for)
                                        : unpack<uint16_t>(shard, logits, offsets, packed, parallel_for);
}

}  // namespace structout::cpu
