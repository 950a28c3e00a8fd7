// The rows of memory that masks are written to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace structout::engine {

// True if a row of a mask allows a token.
inline bool allows(const uint32_t* row, uint32_t token) { return (row[token >> 5] >> (token & 31) & 1) != 0; }

// Identifies the contents of a row: rows of the same key are equal, in the whole process.
// The upper half is the unique_number() of the store or vocabulary that owns the row.
using RowKey = uint64_t;
constexpr RowKey kNoRow = 0, kRowOfNone = 1, kRowOfAll = 2;

// The row that a mask is stored as a diff against.
struct BaseRow {
  RowKey key;
  const uint32_t* words;  // null for the rows below

  uint32_t filler() const { return key == kRowOfAll ? UINT32_MAX : 0; }
};

constexpr BaseRow kNoTokens{kRowOfNone, nullptr}, kAllTokens{kRowOfAll, nullptr};

// A record of the contents of a row in memory: a base row in which the bits of some
// tokens are flipped.
struct RowContent {
  RowKey base = kNoRow;
  RowKey mask = kNoRow;             // the base with the bits of `flipped` tokens flipped
  std::vector<uint32_t> flipped;    // each once
  std::vector<uint32_t> overruled;  // tokens whose bits were flipped since, one after the other

  void forget() { base = mask = kNoRow; }
};

// A row of memory that a mask is written to. If the record says that the row holds a mask
// of the same base, only the bits that differ are written: some cache lines instead of one
// bit for each token of the vocabulary. A row that no cache keeps is put together in
// `scratch` and then streamed; see StreamedRows.
//
// After the destructor, also during an exception, the memory agrees with `content`.
class MaskRow {
 public:
  // `content`: the record of the row, which writes update; null to write without one.
  // `scratch`: memory for a row that is streamed; null for other rows.
  MaskRow(uint32_t* words, size_t num_words, RowContent* content = nullptr, uint32_t* scratch = nullptr)
      : words_(words), num_words_(num_words), content_(content), scratch_(scratch), present_(words) {}
  ~MaskRow();
  MaskRow(const MaskRow&) = delete;

  // Writes a mask: a base with the bits of some tokens flipped, each once.
  void write(RowKey mask, const BaseRow& base, const std::vector<uint32_t>& flipped);

  // Writes a base as it is.
  void write(const BaseRow& base) { write(base.key, base, {}); }

  // The words of the row, for a caller that writes every one of them. Drops the record.
  uint32_t* overwrite() {
    if (content_ != nullptr) content_->forget();
    return present_ = new_words();
  }

  // The mask so far:
  const uint32_t* words() const { return present_; }
  bool allows(uint32_t token) const { return (present_[token >> 5] >> (token & 31) & 1) != 0; }
  void set(uint32_t token, bool is_allowed);
  bool allows_any() const {
    return std::any_of(present_, present_ + num_words_, [](uint32_t word) { return word != 0; });
  }

 private:
  uint32_t* new_words() const { return scratch_ == nullptr ? words_ : scratch_; }
  void flip(uint32_t token) { present_[token >> 5] ^= 1u << (token & 31); }
  void restore_mask();

  uint32_t* words_;
  size_t num_words_;
  RowContent* content_;
  uint32_t* scratch_;
  uint32_t* present_;  // where the mask is now: words_ or scratch_
};

}  // namespace structout::engine
