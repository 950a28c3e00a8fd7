// WalkHints: facts on states that let a walk through the vocabulary allow many tokens at
// once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "json/automaton/contents_table.h"
#include "json/automaton/states.h"
#include "json/scalars/texts.h"

namespace structout::json {

class SchemaAutomaton;

// Most hints are on states inside strings and keys. Expensive ones are computed once for a
// state.
class WalkHints {
 public:
  explicit WalkHints(SchemaAutomaton& automaton);

  // Inside a string or a free key: the number of bytes that may follow of arbitrary
  // characters that are written as themselves. 0 if the schema restricts them.
  uint32_t num_plain_bytes(State state);

  // Between two characters of a string or a free key, or between two tokens of JSON: the
  // classes of characters (token_masks/character_classes.h) after which the state is the same.
  // Tokens of such characters alone may all follow.
  uint64_t repeated_classes(State state);

  // True if the state is between two characters of a string or free key that has no
  // constraints left.
  bool is_free_text(State state) const;

  // True if the state is inside a string that may have any spelling.
  bool is_in_any_spelling(State state) const;

  // For a state inside a key that may still become a named one: the state after characters
  // that rule all names out. None unless is_free_text() holds for that state.
  std::optional<State> state_without_name(State state);

  // The bytes with which the names that the key may still become continue.
  std::vector<uint8_t> name_bytes(State state) const;

  // A state that allows the same next `max_length` bytes of a string, without maximum
  // lengths that are further away. States that differ in these alone share their masks.
  State without_far_limits(State state, uint32_t max_length);

  struct LengthLimit {
    State without;         // the state without the limit
    uint32_t num_free;     // characters after which it still makes no difference
    uint32_t num_at_most;  // characters that may follow
  };
  // The maximum length of the rest of a string, between two characters (see
  // Texts::length_limit()).
  std::optional<LengthLimit> length_limit(State state);

 private:
  // The texts of a string, or of a key that can only be a free one.
  std::optional<uint32_t> texts_of_characters(State state) const;
  uint64_t repeated_whitespace(State state) const;
  bool has_constant_texts(uint32_t texts) const;

  SchemaAutomaton& automaton_;
  Texts& texts_;
  ListTable& lists_;
  std::map<State, std::optional<State>> states_without_name_;
  std::vector<uint32_t> num_plain_bytes_;   // kUnknown where it is not computed yet
  std::vector<uint64_t> repeated_classes_;  // kUnknownClasses where they are not computed yet
};

}  // namespace structout::json
