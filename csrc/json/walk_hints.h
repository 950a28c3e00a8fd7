// What a walk through the vocabulary need not find out byte by byte.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "json/contents_table.h"
#include "json/states.h"
#include "json/texts.h"

namespace structout::json {

class Machine;

// Asked of states inside strings, keys and numbers.
class WalkHints {
 public:
  explicit WalkHints(Machine& machine);

  // Inside a string or a free key: how many bytes may follow of any characters that are
  // written as themselves. 0 if the schema asks more of them.
  uint32_t num_plain_bytes(State state);

  // Between two characters of a string or a free key, or between two tokens of JSON: the
  // classes after all of whose characters the state is the same. See
  // masks/character_classes.h.
  uint64_t repeated_classes(State state);

  // Whether the state is between two characters of a string or free key of which nothing
  // more is asked.
  bool is_free_text(State state) const;

  // For a state inside a key that may still become a named one: the state that follows if
  // it does not, if is_free_text() holds for it.
  std::optional<State> state_without_name(State state);

  // The bytes with which names go on.
  std::vector<uint8_t> name_bytes(State state) const;

  // A state that allows the same texts as the next part of a string of `max_length`
  // bytes, without limits of the length that are further away.
  State without_far_limits(State state, uint32_t max_length);

  struct LengthLimit {
    State without;         // the state without the limit
    uint32_t num_free;     // characters after which it still makes no difference
    uint32_t num_at_most;  // characters that may follow
  };
  // The limit of the length of a string, between two characters.
  std::optional<LengthLimit> length_limit(State state);

 private:
  // The texts of a string, or of a key that can only be a free one.
  std::optional<uint32_t> texts_of_characters(State state) const;
  uint64_t repeated_whitespace(State state) const;
  bool has_constant_texts(uint32_t texts) const;

  Machine& machine_;
  Texts& texts_;
  ListTable& lists_;
  std::map<State, std::optional<State>> states_without_name_;
  std::vector<uint32_t> num_plain_bytes_;   // kUnknown where it is not computed yet
  std::vector<uint64_t> repeated_classes_;  // kUnknownClasses where they are not computed yet
};

}  // namespace structout::json
