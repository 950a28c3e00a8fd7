// The states and masks that texts of a schema share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/allowance_lock.h"
#include "json/places.h"
#include "json/token_walk.h"
#include "masks/mask_store.h"

namespace structout::json {

// States and masks are made when they are first needed, and stay as long as this does.
// Masks are named by the states of the stack that computing them has looked at. Threads
// may share it.
class SchemaStates {
 public:
  SchemaStates(std::unique_ptr<Machine> machine, std::shared_ptr<const engine::VocabularyTrie> vocabulary);

  const std::shared_ptr<const engine::VocabularyTrie>& shared_vocabulary() const { return vocabulary_; }

  // See json::rehearse().
  void rehearse();

  PlacePtr start();

  // The place after a token or bytes. Null if they are not allowed.
  PlacePtr after(const Place& place, uint32_t token);
  PlacePtr after(const Place& place, const std::string& bytes);
  std::string forced(const Place& place);

  // Fills the mask of the tokens that may follow, without stop tokens. Returns whether
  // there is one.
  bool fill(const Place& place, engine::MaskRow& row);
  bool fill(const Place& place, uint32_t* words) {
    engine::MaskRow row(words, vocabulary_->row_words());
    return fill(place, row);
  }

  // The states on top of the stack that the mask of a place looks at, the top first.
  std::vector<State> control_state(const Place& place);

  // Whether fill() is short.
  bool has_mask(const Place& place);

  const std::vector<std::string>& annotations() const { return machine_->schema().annotations(); }
  uint32_t num_masks() const { return store_.size(); }
  size_t num_states();
  uint64_t work();                                       // steps of the budget so far
  size_t memory_bytes() const { return memory_bytes_; }  // waits for no thread
  // See closure().
  std::optional<engine::Automaton> closed(const engine::Limits& limits);

 private:
  friend class EmbeddedSchema;

  // Holds the states for this thread, whose allowance bounds the work, and notes how large
  // they are in the end.
  class Lock {
   public:
    explicit Lock(SchemaStates& states);
    ~Lock();

   private:
    SchemaStates& states_;
    engine::AllowanceLock lock_;
  };
  size_t size_in_bytes() const;

  // Nodes of the trie after which the whole text may end inside a token.
  struct Exits {
    Conditions conditions;
    std::vector<uint32_t> of_lists;            // the condition of each list
    std::vector<std::vector<uint32_t>> lists;  // nodes that have one condition
    std::vector<uint32_t> by_reading;          // nodes that only reading tells
  };

  struct Entry {
    const engine::Mask* mask = nullptr;  // null if it is not kept
    uint32_t number = engine::EmbeddedView::kNoEntry;
    mutable std::shared_ptr<const Exits> exits{};  // null until they are needed
    Suspects suspects;
    Conditions conditions;
  };

  PlacePtr read(const Place& place, const uint8_t* begin, const uint8_t* end);
  bool fill_row(const Position& position, uint32_t* words);
  bool fill_row(const Position& position, const Entry& entry, engine::MaskRow& row);
  State mask_state(const Position& position);
  std::string key_of(const Position& position, State top) const;
  const Entry* known_entry(const Position& position, State top) const;
  const Entry& computed_entry(const Position& position, State top);
  const Entry& entry_of(const Position& position, State top) {
    const Entry* known = known_entry(position, top);
    return known != nullptr ? *known : computed_entry(position, top);
  }
  // False if masks with the same top must look at more of the stack.
  bool find_exits(const Position& position, State top, const Entry& entry);
  // Whether the mask of the entry is that of the position, whatever this remembers.
  bool is_exact(const Position& position, const Entry& entry);
  // Whether more than its states may change the mask of a position.
  static bool depends_on_position(const Position& position, const Entry& entry) {
    return position.has_used() || !entry.suspects.of_themselves.empty() || !entry.conditions.tokens.empty();
  }
  // Keeps the mask of a place, unless null. Returns it.
  static const engine::Mask* keep(const Place& place, const engine::Mask* mask);
  std::vector<bool> truths(const Position& position, const Conditions& conditions);
  bool may_follow(const Position& position, uint32_t token);
  void forbid_past_names(const Position& position, const Conditions& conditions, engine::MaskRow& row);
  void forbid_used(const Position& position, const Suspects& suspects, engine::MaskRow& row);

  std::unique_ptr<Machine> machine_;
  std::shared_ptr<const engine::VocabularyTrie> vocabulary_;
  engine::MaskStore store_;
  std::mutex mutex_;  // guards the machine and what follows
  Places places_;
  std::vector<State> mask_states_;    // for each state: mask_state(), or kNoState
  std::vector<uint32_t> num_frames_;  // for each state: how many a mask with it on top looks at
  std::unordered_map<std::string, Entry> masks_;
  Entry last_;  // computed, if it is not kept
  const uint32_t number_;
  size_t suspect_bytes_ = 0;
  std::vector<uint32_t> row_;
  std::atomic<size_t> memory_bytes_;
};

}  // namespace structout::json
