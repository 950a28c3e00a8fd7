// A store of the different masks over a vocabulary, each once and in a compact form.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "token_masks/mask_row.h"
#include "token_masks/unique_number.h"
#include "token_masks/vocabulary.h"

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

// Masks of one constraint are similar, so a mask may be stored as a list of allowed tokens,
// or as a diff against the row of all tokens with bytes or against one of the kMaxCompared
// most recently used full rows. Threads may share a store: add() locks it, expand() does
// not. add() of a known mask costs a hash of the row and a comparison; a new one also a few
// passes over the row.
class MaskStore {
 public:
  explicit MaskStore(std::shared_ptr<const VocabularyTrie> vocabulary) : vocabulary_(std::move(vocabulary)) {}

  // The stored mask that equals a row without stop tokens, a new one if there is none.
  // Null if the store is full (64 MiB).
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
