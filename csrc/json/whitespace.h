// The whitespace between the tokens of a JSON text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "regular/automaton.h"

namespace structout::json {

inline bool is_space(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

// How whitespace is written.
struct WhitespaceForm {
  bool is_any = true;                      // false: one space after , and :, and no other
  std::optional<uint32_t> max_length = 2;  // characters in a row
  // Allows what it accepts, and nothing, in place of both.
  std::optional<engine::Automaton> pattern;
};

// The texts of JSON's four whitespace characters that a pattern matches. Throws
// std::invalid_argument if it matches characters that are not \s, or none of these texts.
engine::Automaton whitespace_of_pattern(const std::string& pattern, const engine::Limits& limits);

// An automaton over whitespace, with one start for what follows , and : and another for
// all other places.
class Whitespace {
 public:
  static constexpr uint32_t kNone = 0;  // the state where none may come

  explicit Whitespace(const WhitespaceForm& form);

  uint32_t start(bool is_after_separator) const { return is_after_separator ? start_after_separator_ : start_; }

  // Nothing if the byte may not come.
  std::optional<uint32_t> after(uint32_t state, uint8_t byte) const;

  // Whether the next token may follow.
  bool may_end(uint32_t state) const { return states_[state].may_end; }

 private:
  struct State {
    bool may_end = true;
    std::array<uint32_t, 4> after{};  // by the place of the character in kSpaces; kNone if it may not come
  };

  uint32_t add(bool may_end);

  std::vector<State> states_ = {State()};  // kNone's
  uint32_t start_ = kNone, start_after_separator_ = kNone;
};

}  // namespace structout::json
