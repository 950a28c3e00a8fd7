// Masks of places inside embedded texts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "context_free/masks.h"
#include "context_free/reader.h"

namespace structout::context_free {

// The mask of such a place is the union of the masks that embedded languages have alone,
// and of pieces: those of the other places, and those after the nodes of the trie where
// embedded texts end. It is kept under the numbers of all of them. Where nothing but an
// embedded text may go on, the mask is that of its language.
class EmbeddedMasks {
 public:
  // `has_end`: whether a text can be finished from a place.
  using HasEnd = std::function<bool(const Place&)>;
  EmbeddedMasks(Masks& masks, Reader& reader, std::shared_ptr<const engine::VocabularyTrie> vocabulary, HasEnd has_end)
      : masks_(masks),
        reader_(reader),
        store_(vocabulary),
        has_end_(std::move(has_end)),
        added_row_(vocabulary->row_words()),
        row_(vocabulary->row_words()) {}

  // The mask is null if it is not kept, or depends on what is remembered.
  KnownMask find(const Place& place, engine::Budget& budget);
  bool has_mask(const Place& place);

  // The number of all places whose masks are kept under the same numbers.
  uint32_t number_of(const Place& place, engine::Budget& budget);

  void fill(const Place& place, engine::MaskRow& row, engine::Budget& budget);
  void fill(const Place& place, uint32_t* words, engine::Budget& budget) {
    engine::MaskRow row(words, row_.size());
    fill(place, row, budget);
  }

  engine::MaskStore& store() { return store_; }
  size_t memory_bytes() const {
    return store_.memory_bytes() + found_.size() * (sizeof(KnownMask) + kBytesPerKey) +
           (numbers_.size() + followers_.size()) * kBytesPerKey;
  }

 private:
  static constexpr size_t kBytesPerKey = 96;  // of the table, roughly

  std::vector<engine::EmbeddedView> views(const Place& place, engine::Budget& budget);
  // The bytes that may follow an embedded text.
  const engine::ByteSet& followers(Node below, engine::Budget& budget);
  std::string key_of(const Place& place, const std::vector<engine::EmbeddedView>& views) const;
  KnownMask find(const Place& place, const std::vector<engine::EmbeddedView>& views, engine::Budget& budget);
  KnownMask computed(const Place& place, const std::vector<engine::EmbeddedView>& views, engine::Budget& budget);
  // Adds the tokens with bytes after the ends of embedded texts, and those of the other
  // places. Returns whether there are any.
  bool add_others(const Place& place, const std::vector<engine::EmbeddedView>& views, uint32_t* row,
                  engine::Budget& budget);

  Masks& masks_;
  Reader& reader_;
  engine::MaskStore store_;
  const HasEnd has_end_;
  std::unordered_map<std::string, KnownMask> found_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unordered_map<Node, engine::ByteSet> followers_;  // by the node below
  std::vector<uint32_t> added_row_, row_;
};

}  // namespace structout::context_free
