#include "cpu/allowed_logits.h"

#include <algorithm>
#include <cstring>

namespace structout::cpu {
namespace {

constexpr int kWorthWhole = 24;  // of the 32 tokens of a word: so many allowed, and all of them travel, as one run

// visit(first, count) for runs of tokens that travel, ascending: all that are allowed, and a few others.
template <class Visit>
void for_each_allowed_run(const MaskedSampleParams& params, int64_t row, const Visit& visit) {
  const int64_t begin = params.vocab_begin, end = params.vocab_end;
  const MaskRow mask = params.has_mask ? mask_row(params.bitmask, params.rows, row) : MaskRow{nullptr, 0, true};
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
    if (__builtin_popcount(word) >= kWorthWhole) {
      visit(lowest, past - lowest);
      continue;
    }
    for (; word != 0; word &= word - 1) visit(first + __builtin_ctz(word), int64_t{1});
  }
}

// move(logits, packed, count) for every run.
template <class Logits, class Packed, class Move>
void move_rows(const MaskedSampleParams& params, Logits* logits, const std::vector<int64_t>& places, Packed* packed,
               const ParallelFor& parallel_for, const Move& move) {
  parallel_for(params.num_rows, [&](int64_t row) {
    Logits* const of_row = logits + row * params.row_stride;
    Packed* next = packed + places[row];
    for_each_allowed_run(params, row, [&](int64_t first, int64_t count) {
      move(of_row + (first - params.vocab_begin), next, count);
      next += count;
    });
  });
}

template <class Element>
void copy(const Element* from, Element* to, int64_t count) {
  if (count == 1) {
    *to = *from;
  } else {
    memcpy(to, from, static_cast<size_t>(count) * sizeof(Element));
  }
}

template <class Element>
void pack(const MaskedSampleParams& params, const std::vector<int64_t>& places, void* packed,
          const ParallelFor& parallel_for) {
  move_rows(params, static_cast<const Element*>(params.logits), places, static_cast<Element*>(packed), parallel_for,
            [](const Element* logits, Element* to, int64_t count) { copy(logits, to, count); });
}

template <class Element>
void unpack(const MaskedSampleParams& params, void* logits, const std::vector<int64_t>& places, const void* packed,
            const ParallelFor& parallel_for) {
  move_rows(params, static_cast<Element*>(logits), places, static_cast<const Element*>(packed), parallel_for,
            [](Element* to, const Element* from, int64_t count) { copy(from, to, count); });
}

}  // namespace

std::vector<int64_t> packed_places(const MaskedSampleParams& params, const ParallelFor& parallel_for) {
  std::vector<int64_t> places(static_cast<size_t>(params.num_rows) + 1, 0);
  parallel_for(params.num_rows, [&](int64_t row) {
    for_each_allowed_run(params, row, [&](int64_t, int64_t count) { places[row + 1] += count; });
  });
  for (int64_t row = 0; row < params.num_rows; ++row) places[row + 1] += places[row];
  return places;
}

void pack_allowed(const MaskedSampleParams& params, const std::vector<int64_t>& places, void* packed,
                  const ParallelFor& parallel_for) {
  params.format == FloatFormat::kFloat32 ? pack<uint32_t>(params, places, packed, parallel_for)
                                         : pack<uint16_t>(params, places, packed, parallel_for);
}

void unpack_allowed(const MaskedSampleParams& params, void* logits, const std::vector<int64_t>& places,
                    const void* packed, const ParallelFor& parallel_for) {
  params.format == FloatFormat::kFloat32 ? unpack<uint32_t>(params, logits, places, packed, parallel_for)
                                         : unpack<uint16_t>(params, logits, places, packed, parallel_for);
}

}  // namespace structout::cpu
