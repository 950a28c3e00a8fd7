#include "automata/code_points.h"

#include <algorithm>

namespace structout::engine {

namespace {

constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr uint32_t kLargestOfLength[] = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};

// Writes the UTF-8 form of a code point and returns its length.
int encode(uint32_t code, uint8_t bytes[4]) {
  if (code <= 0x7F) {
    bytes[0] = uint8_t(code);
    return 1;
  }
  int length = code <= 0x7FF ? 2 : code <= 0xFFFF ? 3 : 4;
  for (int i = length - 1; i > 0; --i, code >>= 6) bytes[i] = uint8_t(0x80 | (code & 0x3F));
  bytes[0] = uint8_t((0xF00 >> length) & 0xFF) | uint8_t(code);
  return length;
}

// Splits a range, whose members have forms of one length, until each byte position has
// one range whatever the other bytes are.
void add_sequences(uint32_t first, uint32_t last, std::vector<Utf8Sequence>& sequences) {
  uint8_t low[4], high[4];
  int length = encode(first, low);
  for (int i = 1; i < length; ++i) {
    uint32_t mask = (1u << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      add_sequences(first, first | mask, sequences);
      add_sequences((first | mask) + 1, last, sequences);
      return;
    }
    if ((last & mask) != mask) {
      add_sequences(first, (last & ~mask) - 1, sequences);
      add_sequences(last & ~mask, last, sequences);
      return;
    }
  }
  encode(last, high);
  Utf8Sequence sequence{{}, length};
  for (int i = 0; i < length; ++i) sequence.bytes[i] = {low[i], high[i]};
  sequences.push_back(sequence);
}

// Adds the range without U+D800 to U+DFFF, which have no UTF-8 form.
void add_without_surrogates(uint32_t first, uint32_t last, std::vector<Utf8Sequence>& sequences) {
  if (first < kFirstSurrogate && last >= kFirstSurrogate) {
    add_sequences(first, kFirstSurrogate - 1, sequences);
    first = kFirstSurrogate;
  }
  if (first >= kFirstSurrogate && first <= kLastSurrogate) first = kLastSurrogate + 1;
  if (first <= last) add_sequences(first, last, sequences);
}

}  // namespace

void CodePointSet::normalize() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  size_t kept = 0;
  for (const CodePointRange& range : ranges_) {
    if (kept > 0 && range.first <= uint64_t(ranges_[kept - 1].last) + 1) {
      ranges_[kept - 1].last = std::max(ranges_[kept - 1].last, range.last);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet others;
  uint32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) others.add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) others.add(next, kLastCodePoint);
  return others;
}

bool CodePointSet::contains(uint32_t code) const {
  for (const CodePointRange& range : ranges_) {
    if (range.first <= code && code <= range.last) return true;
  }
  return false;
}

std::vector<Utf8Sequence> utf8_sequences(const CodePointSet& set) {
  std::vector<Utf8Sequence> sequences;
  for (CodePointRange range : set.ranges()) {
    for (uint32_t largest : kLargestOfLength) {
      if (range.first > largest) continue;
      add_without_surrogates(range.first, std::min(range.last, largest), sequences);
      if (range.last <= largest) break;
      range.first = largest + 1;
    }
  }
  return sequences;
}

bool decode_utf8(const std::string& text, std::vector<uint32_t>& code_points) {
  for (size_t i = 0; i < text.size();) {
    uint8_t lead = uint8_t(text[i]);
    int length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7F >> length);
    for (int j = 1; j < length; ++j) {
      uint8_t byte = uint8_t(text[i + j]);
      if ((byte & 0xC0) != 0x80) return false;
      code = code << 6 | (byte & 0x3F);
    }
    bool is_overlong = length > 1 && code <= kLargestOfLength[length - 2];
    if (is_overlong || code > kLastCodePoint || (code >= kFirstSurrogate && code <= kLastSurrogate)) return false;
    code_points.push_back(code);
    i += size_t(length);
  }
  return true;
}

}  // namespace structout::engine
