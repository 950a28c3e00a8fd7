// Masks of configurations inside embedded texts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/gss/reader.h"
#include "grammar/token_masks/masks.h"

namespace structout::context_free {

// Computes masks inside embedded texts. Such a mask is the union of the masks of the
// embedded languages alone and of partial masks (see Masks): those of the lexer
// configurations beside the embedded texts, and those that continue after an embedded text
// has ended inside a token. The cache key lists the numbers of all these parts. If nothing
// but one embedded text may continue, its language's own mask serves as it is.
//
// A hit costs the views of the embedded texts and one hash lookup, or nothing if the
// configuration itself knows its mask; a miss costs the search for partial masks and the
// expansion of each language's mask.
class EmbeddedMasks {
 public:
  // `has_end(config)`: true if a text can be finished from the configuration.
  using HasEnd = std::function<bool(const Configuration&)>;
  EmbeddedMasks(Masks& masks, Reader& reader, std::shared_ptr<const engine::VocabularyTrie> vocabulary, HasEnd has_end)
      : masks_(masks),
        reader_(reader),
        store_(vocabulary),
        has_end_(std::move(has_end)),
        added_row_(vocabulary->row_words()),
        row_(vocabulary->row_words()) {}

  // Returns the mask, which is null if there is no room for it or if it depends on what
  // embedded configurations remember. has_mask() is true if find() has nothing to compute.
  KnownMask find(const Configuration& config, engine::Budget& budget);
  bool has_mask(const Configuration& config);

  // Returns a number that all configurations with the same cache key share.
  uint32_t number_of(const Configuration& config, engine::Budget& budget);

  void fill(const Configuration& config, engine::MaskRow& row, engine::Budget& budget);
  void fill(const Configuration& config, uint32_t* words, engine::Budget& budget) {
    engine::MaskRow row(words, row_.size());
    fill(config, row, budget);
  }

  // Calls visit(parse, node) for the nodes of the trie after which an embedded text may end
  // inside a token.
  template <typename Visit>
  void visit_continuations(const Configuration& config, engine::Budget& budget, Visit visit);

  engine::MaskStore& store() { return store_; }
  size_t memory_bytes() const {
    return store_.memory_bytes() + found_.size() * (sizeof(KnownMask) + kBytesPerKey) +
           (numbers_.size() + followers_.size()) * kBytesPerKey;
  }

 private:
  static constexpr size_t kBytesPerKey = 96;  // of the table, roughly

  std::vector<engine::EmbeddedView> views(const Configuration& config, engine::Budget& budget);
  // The bytes that may follow an embedded text that returns to `below`.
  const engine::ByteSet& followers(GssNode below, engine::Budget& budget);
  std::string key_of(const Configuration& config, const std::vector<engine::EmbeddedView>& views) const;
  KnownMask find(const Configuration& config, const std::vector<engine::EmbeddedView>& views, engine::Budget& budget);
  KnownMask computed(const Configuration& config, const std::vector<engine::EmbeddedView>& views,
                     engine::Budget& budget);
  // Adds the tokens that continue after the end of an embedded text, and those of the lexer
  // configurations. Returns true if `row`, which must be empty before, has tokens then.
  bool add_others(const Configuration& config, const std::vector<engine::EmbeddedView>& views, uint32_t* row,
                  engine::Budget& budget);

  Masks& masks_;
  Reader& reader_;
  engine::MaskStore store_;
  const HasEnd has_end_;
  std::unordered_map<std::string, KnownMask> found_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unordered_map<GssNode, engine::ByteSet> followers_;  // by the node below
  std::vector<uint32_t> added_row_, row_;
};

template <typename Visit>
void EmbeddedMasks::visit_continuations(const Configuration& config, engine::Budget& budget, Visit visit) {
  const std::vector<engine::EmbeddedView> views = this->views(config, budget);
  for (size_t i = 0; i < views.size(); ++i) {
    const EmbeddedParse& parse = config.others->parses[i];
    auto visit_all = [&](const std::vector<uint32_t>& nodes) {
      for (uint32_t node : nodes) visit(parse, node);
    };
    views[i].visit_counting(visit_all);
    visit_all(views[i].own_continuations);
  }
}

}  // namespace structout::context_free
