// The masks of a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "token_masks/mask_row.h"
#include "token_masks/streamed_rows.h"

namespace structout::engine {

// A buffer of masks with a record of the contents of each row, so that writing a
// similar mask over an old one touches only the bits that differ; see MaskRow.
class MaskBuffer {
 public:
  // `address`: of the first row. `row_bytes`: from one row to the next.
  MaskBuffer(uintptr_t address, int64_t row_bytes, size_t num_rows)
      : address_(address), row_bytes_(row_bytes), contents_(num_rows) {}

  size_t num_rows() const { return contents_.size(); }
  size_t row_bytes() const { return size_t(row_bytes_); }
  size_t row_words() const { return row_bytes() / sizeof(uint32_t); }
  uint32_t* row(size_t i) const { return reinterpret_cast<uint32_t*>(address_ + uintptr_t(int64_t(i) * row_bytes_)); }
  RowContent& content(size_t i) { return contents_[i]; }

  // Lets the rows first ... end - 1 allow nothing.
  void clear(size_t first, size_t end) {
    for (size_t i = first; i < std::min(end, num_rows()); ++i) {
      MaskRow(row(i), row_words(), &content(i)).write(kNoTokens);
    }
  }

  // To be called before others write to the rows first ... end - 1.
  void forget(size_t first, size_t end) {
    for (size_t i = first; i < std::min(end, num_rows()); ++i) content(i).forget();
  }

 private:
  uintptr_t address_;
  int64_t row_bytes_;
  std::vector<RowContent> contents_;  // of each row
};

// Writes rows, past the caches if there are many. For one thread.
class RowWriter {
 public:
  RowWriter(MaskBuffer& masks, size_t num_rows)
      : masks_(masks), scratch_(StreamedRows::is_better(num_rows * masks.row_bytes()) ? masks.row_words() : 0) {}
  ~RowWriter() { StreamedRows::finish(); }
  RowWriter(const RowWriter&) = delete;

  // Writes row i with write(row), and returns what that does.
  template <typename Write>
  bool write(size_t i, Write write) {
    MaskRow row(masks_.row(i), masks_.row_words(), &masks_.content(i), scratch_.empty() ? nullptr : scratch_.data());
    return write(row);
  }

  // Lets row i allow nothing.
  void clear(size_t i) { masks_.clear(i, i + 1); }

 private:
  MaskBuffer& masks_;
  std::vector<uint32_t> scratch_;  // of a row that is streamed; empty if none is
};

}  // namespace structout::engine
