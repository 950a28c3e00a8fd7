// The whitespace between the tokens of a JSON text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "automata/automaton.h"
#include "base/limits.h"

namespace structout::json {

inline bool is_space(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

enum class WhitespaceRule : uint8_t {
  kIndented,  // one space, or one line feed and an indentation, where JSON writers put them
  kCompact,   // one space after a comma and a colon, and no other
  kAny,       // any, up to a length
};

// The whitespace that texts may have: a rule or a pattern.
struct WhitespaceForm {
  WhitespaceRule rule = WhitespaceRule::kIndented;
  std::optional<uint32_t> max_length;  // of kAny: characters in a row
  // Replaces the rule: allows the whitespace that it accepts, and none.
  std::optional<engine::Automaton> pattern;
};

// The texts of JSON's four whitespace characters that a pattern matches. Throws
// std::invalid_argument if it matches characters that are not \s, or none of these texts.
engine::Automaton whitespace_of_pattern(const std::string& pattern, const engine::Limits& limits);

// An automaton over whitespace, with a start for each token that it follows.
class Whitespace {
 public:
  static constexpr uint32_t kNone = 0;  // the state where none may come

  explicit Whitespace(const WhitespaceForm& form);

  uint32_t after_bracket() const { return after_bracket_; }  // that opens an object or an array
  uint32_t after_key() const { return after_key_; }
  uint32_t after_colon() const { return after_colon_; }
  uint32_t after_value() const { return after_bracket_; }  // of a member or an item
  uint32_t after_comma() const { return after_comma_; }

  // In place of after_value() where the object or the array surely may end: what follows
  // the whitespace is its end.
  uint32_t before_end() const { return before_end_; }

  // True if whitespace may follow a value only where the object or the array may end, as
  // with kIndented.
  bool needs_end() const { return before_end_ != after_value(); }

  // Nothing if the byte may not come.
  std::optional<uint32_t> after(uint32_t state, uint8_t byte) const;

  // True if the next token may follow.
  bool may_end(uint32_t state) const { return states_[state].may_end; }

  // True if that token may be a comma.
  bool may_separate(uint32_t state) const { return states_[state].may_separate; }

 private:
  struct State {
    bool may_end = true, may_separate = true;
    std::array<uint32_t, 4> after{};  // by the place of the character in kSpaces; kNone if it may not come
  };

  uint32_t add(bool may_end);
  void add_repeated(uint32_t from, char space, uint32_t max_length);
  uint32_t add_indented();
  void set_all_starts(uint32_t start);

  std::vector<State> states_ = {State()};  // kNone's
  uint32_t after_bracket_ = kNone, after_key_ = kNone, after_colon_ = kNone, after_comma_ = kNone, before_end_ = kNone;
};

}  // namespace structout::json
