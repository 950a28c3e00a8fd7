// Sets of code points, and their UTF-8 forms as ranges of bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace structout::engine {

constexpr uint32_t kLastCodePoint = 0x10FFFF;

struct CodePointRange {
  uint32_t first;
  uint32_t last;
  bool operator==(const CodePointRange& other) const { return first == other.first && last == other.last; }
};

class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges) : ranges_(ranges) {}

  void add(uint32_t first, uint32_t last) { ranges_.push_back({first, last}); }
  void add(const CodePointSet& other) { ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end()); }

  // Sorts the ranges and merges those that touch.
  void normalize();

  // All code points that are not in the set, which must be normalized.
  CodePointSet complement() const;

  bool contains(uint32_t code) const;

  const std::vector<CodePointRange>& ranges() const { return ranges_; }

 private:
  std::vector<CodePointRange> ranges_;
};

struct ByteRange {
  uint8_t first;
  uint8_t last;
  bool operator==(const ByteRange& other) const { return first == other.first && last == other.last; }
};

// Texts of `length` bytes, byte i of which is in bytes[i].
struct Utf8Sequence {
  std::array<ByteRange, 4> bytes;
  int length;
};

// The UTF-8 forms of a normalized set, in order. Surrogates have none. At each position
// the ranges after the same bytes are equal or disjoint.
std::vector<Utf8Sequence> utf8_sequences(const CodePointSet& set);

// The code points of a text. False if it is not UTF-8.
bool decode_utf8(const std::string& text, std::vector<uint32_t>& code_points);

}  // namespace structout::engine
