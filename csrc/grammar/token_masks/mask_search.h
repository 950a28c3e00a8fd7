// The search for the partial masks that a mask consists of.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "grammar/token_masks/masks.h"
#include "grammar/token_masks/summaries.h"

namespace structout::context_free {

// Follows branches from the configurations of a text. A branch adds the partial mask at its
// start, and each continuation of this partial mask leads to further branches. Equal
// branches are followed once: see BranchSet.
class Masks::MaskSearch {
 public:
  MaskSearch(Masks& masks, Reader& reader, const HasEnd& has_end, engine::Budget& budget)
      : masks_(masks), network_(masks.network_), reader_(reader), has_end_(has_end), budget_(budget) {}

  // See Masks::partial_masks_of().
  std::optional<std::vector<uint32_t>> partial_masks(const std::vector<Branch>& branches);

 private:
  void continue_at(const Branch& branch);
  bool is_there(const Branch& branch);
  void follow_lexemes(const Branch& branch);
  bool follow_summary(const Branch& branch);
  void follow_rules(const Branch& branch);
  void begin_embedded(const Branch& branch);
  void add_token_ids(const StackTop& top);
  bool has_end_after_tokens(uint32_t state);
  uint32_t add_partial_mask(uint32_t trie_nodes, uint32_t start);

  // True in front of whole tokens, where the text may also continue by a token matched by
  // its id.
  bool is_in_front(const Branch& branch) const {
    return network_.has_tokens() && branch.trie_nodes == masks_.whole_trie_;
  }

  Masks& masks_;
  const Network& network_;
  Reader& reader_;
  const HasEnd& has_end_;
  engine::Budget& budget_;
  std::vector<Branch> pending_;
  std::vector<uint32_t> numbers_;  // of partial masks
  std::unordered_map<uint32_t, std::vector<GssNode>>
      open_nodes_;  // by list of nodes of the trie: the nodes of branches that are not closed
  std::unordered_map<GssNode, Summaries::Tops> tops_by_node_;  // of nodes that were reached
  bool are_ends_sure_ = true;
};

}  // namespace structout::context_free
