// Masks of a vocabulary, each kept once in its smallest form.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "masks/mask_row.h"
#include "masks/unique_number.h"
#include "masks/vocabulary.h"

namespace structout::engine {

constexpr uint32_t kNotStored = UINT32_MAX;

enum class MaskKind : uint8_t {
  kRow,
  kAllowed,    // a list of its tokens
  kDiffering,  // a list of where it differs from another row
};

struct Mask {
  MaskKind kind;
  std::vector<uint32_t> words;  // of the row, or token ids
  const Mask* base = nullptr;   // what it differs from, of kind kRow; null: the row of all tokens with bytes
  uint32_t slot = kNotStored;   // its number, in the order in which masks were added
  bool is_empty() const { return kind == MaskKind::kAllowed && words.empty(); }
};

// Masks of one constraint are often alike, so a mask may be kept as what it differs in from
// one that was used like that, or added, not long ago. Threads may share it.
class MaskStore {
 public:
  explicit MaskStore(std::shared_ptr<const VocabularyTrie> vocabulary) : vocabulary_(std::move(vocabulary)) {}

  // The mask of a row, which has no bits of stop tokens. Null if too many bytes are kept.
  const Mask* add(const uint32_t* row);
  void expand(const Mask& mask, MaskRow& row) const;
  void expand(const Mask& mask, uint32_t* words) const {
    MaskRow row(words, vocabulary_->row_words());
    expand(mask, row);
  }

  uint32_t size() const;
  size_t memory_bytes() const;

 private:
  static constexpr size_t kMaxCompared = 8;  // rows

  Mask smallest_form(const uint32_t* row);
  bool are_equal(const Mask& mask, const uint32_t* row);
  RowKey key(const Mask& mask) const { return RowKey{number_} << 32 | mask.slot; }

  std::shared_ptr<const VocabularyTrie> vocabulary_;
  const uint32_t number_ = unique_number();
  mutable std::mutex mutex_;  // guards what follows
  std::deque<Mask> masks_;
  std::vector<const Mask*> bases_;  // of kind kRow, those of late use first
  std::vector<uint32_t> expanded_;  // scratch memory
  std::unordered_multimap<uint64_t, const Mask*> by_hash_;
  size_t bytes_ = 0;
};

}  // namespace structout::engine
