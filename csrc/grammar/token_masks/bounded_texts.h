// Texts of an automaton with bounds on their number of characters, as an embedded language.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "automata/character_counts.h"
#include "base/step_budget_lock.h"
#include "language/embedded.h"
#include "token_masks/bytes_below.h"
#include "token_masks/endings.h"
#include "token_masks/mask_store.h"

namespace structout::context_free {

// A state of the automaton, and the characters that must and that may still follow.
struct BoundedPosition {
  static constexpr uint32_t kNoBound = UINT32_MAX;

  uint32_t state = 0, min = 0, max = kNoBound;

  bool operator==(const BoundedPosition& other) const {
    return state == other.state && min == other.min && max == other.max;
  }
  bool operator<(const BoundedPosition& other) const {
    return std::tie(state, min, max) < std::tie(other.state, other.min, other.max);
  }
};

// An automaton over the tokens of a vocabulary that also counts characters: one for all
// bounds, in place of a copy of its states for each character. Positions whose bounds no
// token can reach share a mask. A miss costs a walk over the vocabulary's trie, which adds
// the tokens below a node at once where all characters lead back to one state.
//
// Functions that may change it require lock(), except memory_share().
class BoundedAutomaton {
 public:
  // `automaton`: over UTF-8. Texts with bytes that are no tokens of the vocabulary are left
  // out, as everywhere. Throws LimitError as CharacterCounts does.
  BoundedAutomaton(const engine::Automaton& automaton, std::shared_ptr<const engine::VocabularyTrie> vocabulary,
                   const engine::Limits& limits);

  const engine::VocabularyTrie& vocabulary() const { return *vocabulary_; }
  std::unique_ptr<engine::StepBudgetLock> lock();

  BoundedPosition start(uint32_t min, uint32_t max) const;

  // The position after a byte, which may be dead.
  BoundedPosition after(BoundedPosition position, uint8_t byte) const;

  // True if a text with the bounds continues the position.
  bool is_live(const BoundedPosition& position) const;
  bool may_end(const BoundedPosition& position) const {
    return position.min == 0 && automaton_.accepts(position.state);
  }
  bool may_continue(const BoundedPosition& position) const;

  // As EmbeddedCache says.
  engine::EmbeddedView view(const BoundedPosition& position);
  std::optional<engine::EmbeddedView> known_view(const BoundedPosition& position) const;
  void fill(const BoundedPosition& position, uint32_t* row);
  void expand(const engine::Mask& mask, engine::MaskRow& row) const { store_.expand(mask, row); }
  std::string forced(BoundedPosition position);
  std::string short_end(const BoundedPosition& position);
  uint32_t cost_to_end(const BoundedPosition& position);
  uint32_t most_cost(const BoundedPosition& position) const;
  engine::CostTable token_costs(const BoundedPosition& position);

  engine::Budget& budget() { return budget_; }
  uint32_t number() const { return number_; }
  // The memory, divided by the number of languages.
  size_t memory_share();

 private:
  friend class BoundedTexts;  // counts itself
  using Nodes = std::vector<std::vector<uint32_t>>;
  static constexpr size_t kMaxEntries = 1 << 16;
  static constexpr size_t kMaxTableBytes = 16 << 20;  // beyond, costs after tokens are not kept
  static constexpr uint32_t kMaxSpelled = 256;        // characters whose tokens are counted
  static constexpr size_t kMaxForcedBytes = 4'096;

  struct Entry {
    const engine::Mask* mask;
    std::shared_ptr<const Nodes> continuations;  // one list
    uint32_t number;
  };

  // The groups of bytes that lead from a state back to it; of those above ASCII, all whole
  // characters do.
  struct Loops {
    bool is_known = false;
    engine::ByteGroups groups = 0;
  };

  BoundedPosition shared_position(BoundedPosition position) const;
  engine::EmbeddedView view_of(const Entry& entry) const;
  engine::ByteGroups looping_groups(uint32_t state);
  bool leads_back(uint32_t start, uint32_t state, uint8_t rest) const;

  // Calls visit(node, end, position) for the nodes of the trie with live positions: the
  // tokens from the node's first one to tokens()[end] all lead to the position. Those below a
  // node may come with it, where all of them are allowed; `whole_characters`: although a
  // token ends inside a character.
  template <typename Visit>
  void walk(const BoundedPosition& position, bool whole_characters, Visit visit);

  // Writes the mask, and returns the nodes after which the text may end inside a token.
  std::vector<uint32_t> computed_row(const BoundedPosition& position, uint32_t* row);

  // The end with the fewest characters that the position needs, as tokens. Of characters
  // before the last kMaxSpelled, each byte is one.
  const engine::Ending* ending(uint32_t state, uint32_t num_characters);

  engine::Automaton automaton_;
  std::shared_ptr<const engine::VocabularyTrie> vocabulary_;
  const uint32_t number_;
  std::mutex mutex_;  // guards what follows
  engine::Budget budget_;
  engine::CharacterCounts counts_;
  std::vector<Loops> loops_;  // by state
  engine::MaskStore store_;
  std::map<BoundedPosition, Entry> entries_;
  engine::Endings endings_;
  std::map<std::pair<uint32_t, uint32_t>, const engine::Ending*> ending_of_;  // by state and characters
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<const engine::TokenCosts>> tables_;  // by state and min
  size_t table_bytes_ = 0, continuation_bytes_ = 0;
  std::atomic<uint32_t> num_languages_{0};
};

// The texts of an automaton with at least `min` and at most `max` characters. No text is
// empty.
class BoundedTexts final : public engine::EmbeddedLanguage {
 public:
  // Throws std::invalid_argument if there is no such text, or if the empty one is.
  BoundedTexts(std::shared_ptr<BoundedAutomaton> automaton, uint32_t min, uint32_t max);
  ~BoundedTexts() override { --automaton_->num_languages_; }

  const engine::VocabularyTrie& embedded_vocabulary() const override { return automaton_->vocabulary(); }
  const engine::ByteSet& first_bytes() const override { return first_bytes_; }
  size_t memory_bytes() override { return automaton_->memory_share(); }
  std::shared_ptr<engine::EmbeddedCache> embedded_cache() override { return cache_; }
  // The number of positions is bounded, so that no cache gets too large for other texts.
  std::shared_ptr<engine::EmbeddedCache> new_embedded_cache() override { return cache_; }

 private:
  const std::shared_ptr<BoundedAutomaton> automaton_;
  std::shared_ptr<engine::EmbeddedCache> cache_;
  engine::ByteSet first_bytes_;
};

}  // namespace structout::context_free
