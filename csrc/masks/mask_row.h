// Where a mask is written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace structout::engine {

// Names the words of a row: rows of the same key are equal, in the whole process. The upper
// half is a unique_number() of what keeps the row.
using RowKey = uint64_t;
constexpr RowKey kNoRow = 0, kRowOfNone = 1, kRowOfAll = 2;

// The words that a mask is like.
struct BaseRow {
  RowKey key;
  const uint32_t* words;  // null for the rows below

  uint32_t filler() const { return key == kRowOfAll ? UINT32_MAX : 0; }
};

constexpr BaseRow kNoTokens{kRowOfNone, nullptr}, kAllTokens{kRowOfAll, nullptr};

// What a row in memory holds: the words of a base but for the bits of some tokens.
struct RowContent {
  RowKey base = kNoRow;
  RowKey mask = kNoRow;             // the base with the bits of `flipped` tokens flipped
  std::vector<uint32_t> flipped;    // each once
  std::vector<uint32_t> overruled;  // tokens whose bits were flipped since, one after the other

  void forget() { base = mask = kNoRow; }
};

// A row of memory that a mask is written to. If it is known what the row holds, and the mask
// is like that, only what differs is written: some cache lines instead of all of V / 8
// bytes. A row that no cache keeps is put together elsewhere first, and then streamed; see
// StreamedRows.
//
// When it is destroyed, also by an exception, the memory holds what `content` says.
class MaskRow {
 public:
  // `content`: of the row, kept up to date; null if nothing is known of it. `scratch`: words
  // for rows that are streamed; null for others.
  MaskRow(uint32_t* words, size_t num_words, RowContent* content = nullptr, uint32_t* scratch = nullptr)
      : words_(words), num_words_(num_words), content_(content), scratch_(scratch), present_(words) {}
  ~MaskRow();
  MaskRow(const MaskRow&) = delete;

  // Writes a mask: a base with the bits of some tokens flipped, each once.
  void write(RowKey mask, const BaseRow& base, const std::vector<uint32_t>& flipped);

  // Writes a base as it is.
  void write(const BaseRow& base) { write(base.key, base, {}); }

  // The words, of which each has to be written.
  uint32_t* overwrite() {
    if (content_ != nullptr) content_->forget();
    return present_ = new_words();
  }

  // The mask as far as it is written:
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
