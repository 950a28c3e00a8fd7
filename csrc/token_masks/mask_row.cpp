#include "token_masks/mask_row.h"

#include <cstring>
#include <new>

#include "token_masks/streamed_rows.h"

namespace structout::engine {

// Nothing here throws: without memory for the record of a row, the record is dropped
// and the next mask is written in full.
void MaskRow::write(RowKey mask, const BaseRow& base, const std::vector<uint32_t>& flipped) {
  bool is_like_before = content_ != nullptr && content_->base == base.key;
  if (is_like_before) {
    restore_mask();
    if (content_->mask == mask) return;
    for (uint32_t token : content_->flipped) flip(token);
  } else {
    present_ = new_words();
    if (base.words == nullptr) {
      std::memset(present_, int(base.filler() & 0xFF), num_words_ * sizeof(uint32_t));
    } else {
      std::memcpy(present_, base.words, num_words_ * sizeof(uint32_t));
    }
  }
  for (uint32_t token : flipped) flip(token);
  if (content_ == nullptr) return;
  try {
    content_->overruled.clear();
    content_->flipped = flipped;
    content_->base = base.key;
    content_->mask = mask;
  } catch (const std::bad_alloc&) {
    content_->forget();
  }
}

void MaskRow::set(uint32_t token, bool is_allowed) {
  if (allows(token) == is_allowed) return;
  if (content_ != nullptr && content_->base != kNoRow) {
    try {
      content_->overruled.push_back(token);
    } catch (const std::bad_alloc&) {
      content_->forget();
    }
  }
  flip(token);
}

// Flips back the bits that set() has changed since the mask was written.
void MaskRow::restore_mask() {
  std::vector<uint32_t>& tokens = content_->overruled;
  for (uint32_t token : tokens) flip(token);
  tokens.clear();
}

MaskRow::~MaskRow() {
  if (present_ != words_) StreamedRows::copy(words_, present_, num_words_);
}

}  // namespace structout::engine
