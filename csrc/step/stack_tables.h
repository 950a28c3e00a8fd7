// Makes the tables of the stack ops (common/stack_tables.h) from the machines of
// constraints.
//
// A machine that keeps its stack apart has few states, where an automaton of the same
// language may need millions or may not exist. The states that texts can come to are found
// by saturation: pairs of a state and the state in which its value has begun, as in the
// summaries of pushdown systems (Reps, Horwitz and Sagiv, 1995). What is not built within a
// budget is built when a text comes there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step/stack_language.h"

namespace structout::engine {

class StackTableBuilder {
 public:
  // `max_mask_bytes`: of the masks that have slots.
  StackTableBuilder(std::shared_ptr<const VocabularyTrie> vocabulary, size_t max_mask_bytes);

  // Gives the language a number. Throws std::invalid_argument for another vocabulary.
  uint32_t add(std::shared_ptr<StackLanguage> language, std::vector<uint32_t> stop_tokens);

  // Builds the states that texts of the language come to. Returns whether all are built,
  // within `seconds` of CPU time and `max_states`.
  bool build(uint32_t language, uint32_t max_states, double seconds);

  // Writes the place of the empty text into a row of `max_depth` frames.
  void start(uint32_t language, int32_t* row, int64_t max_depth);

  // Builds what a token needs from a place that has missed. False if the engine must
  // follow the text.
  bool complete(const int32_t* row, int64_t max_depth, int64_t token);

  // Gives the mask of a place a slot. False if it has none: it depends on more than the
  // place, or there is no room.
  bool keep_mask(const int32_t* row, int64_t max_depth);

  // The slot of a place's mask, kept if there is none yet; below 0 if it has none.
  int32_t slot_of_place(const int32_t* row, int64_t max_depth) {
    keep_mask(row, max_depth);
    return tables().mask_row({const_cast<int32_t*>(row), 1}, max_depth);
  }

  // A text that the engine follows, and what it is for the ops.
  std::unique_ptr<StackLanguage::Text> text(uint32_t language) { return languages_.at(language).language->text(); }
  // Writes its place, or kAskedStack in its top.
  void write_place(uint32_t language, StackLanguage::Text& text, int32_t* row, int64_t max_depth);
  bool is_stop(uint32_t language, int64_t token) const;
  // With the bits of stop tokens.
  void fill(uint32_t language, StackLanguage::Text& text, uint32_t* row);

  // The tables, which are valid until the next call that builds.
  StackTables tables() const;
  const std::vector<int32_t>& states() const { return states_; }
  const std::vector<uint8_t>& class_maps() const { return class_maps_; }
  const std::vector<int32_t>& cells() const { return cells_; }
  const std::vector<int32_t>& keys() const { return keys_; }
  const std::vector<int32_t>& stop_tokens() const { return stop_tokens_; }
  const std::vector<uint32_t>& masks() const { return masks_; }
  uint32_t num_states() const { return uint32_t(states_.size() / kStateFields); }
  uint32_t num_masks() const { return uint32_t(masks_.size() / row_words()); }
  uint32_t num_keys() const { return num_keys_; }
  size_t row_words() const { return vocabulary_->row_words(); }
  // States, maps, actions and lists, without keys and masks.
  size_t table_bytes() const { return (states_.size() + cells_.size()) * sizeof(int32_t) + class_maps_.size(); }

 private:
  struct Language {
    std::shared_ptr<StackLanguage> language;
    std::vector<uint32_t> stop_tokens;
    std::unordered_map<uint32_t, int32_t> numbers;  // of its states in the tables
    int32_t bottom = -1;
  };
  // Where a state of the tables comes from.
  struct Origin {
    uint32_t language;
    uint32_t state;
  };
  class Saturation;

  int32_t& field(int32_t state, int64_t field) { return states_[size_t(state * kStateFields + field)]; }
  void list_stop_tokens();
  int32_t add_state(uint32_t language, uint32_t state);
  int32_t number_of(uint32_t language, uint32_t state);
  void add_actions(int32_t state);
  void add_tokens(int32_t state);
  std::vector<std::pair<int32_t, int32_t>> pairs_of(int32_t state) const;
  int32_t packed(uint32_t language, const StackAction& action);
  int32_t resume(int32_t waiting, uint32_t verdicts);
  int32_t guard_cell(const StackGuard& guard);
  void check_cells(size_t count) const;
  int32_t add_conditions(const StackMask& mask);
  // Cells of these values, which equal ones share.
  int32_t shared_cells(const std::vector<int32_t>& values);
  int32_t class_map_of(const uint8_t* classes);
  int32_t slot_of(uint32_t language, uint32_t* row, bool is_complete);
  void insert_key(const int32_t (&key)[kKeyFrames], int32_t slot);
  bool place_of(const int32_t* row, int64_t max_depth, StackPlace& place, uint32_t& language) const;

  const std::shared_ptr<const VocabularyTrie> vocabulary_;
  const size_t max_masks_;
  std::vector<Language> languages_;
  std::vector<Origin> origins_;
  std::vector<int32_t> states_, cells_, keys_;
  std::vector<uint8_t> class_maps_;
  std::vector<int32_t> stop_tokens_, token_begin_;
  size_t max_stop_tokens_ = 0;
  std::vector<uint32_t> masks_, scratch_;
  uint32_t num_keys_ = 0;
  std::unordered_multimap<uint64_t, int32_t> maps_by_hash_, cells_by_hash_, masks_by_hash_;
};

}  // namespace structout::engine
