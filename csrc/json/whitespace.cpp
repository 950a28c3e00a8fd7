#include "json/whitespace.h"

#include <stdexcept>
#include <string_view>

#include "regular/compile.h"

namespace structout::json {

namespace {

constexpr std::string_view kSpaces = " \t\n\r";

}  // namespace

engine::Automaton whitespace_of_pattern(const std::string& pattern, const engine::Limits& limits) {
  engine::Budget budget(limits);
  engine::Automaton given = engine::compile_regex(pattern, limits);
  engine::Automaton unicode = engine::compile_regex("\\s*", limits);
  engine::Automaton allowed = intersection(given, engine::compile_regex("[ \\t\\n\\r]*", limits), budget);
  if (difference(given, unicode, budget).num_states() > 0 || allowed.num_states() == 0) {
    throw std::invalid_argument("spaces, tabs, line feeds and carriage returns only");
  }
  return allowed;
}

uint32_t Whitespace::add(bool may_end) {
  states_.push_back({may_end});
  return uint32_t(states_.size() - 1);
}

Whitespace::Whitespace(const WhitespaceForm& form) {
  if (form.pattern) {
    // State s of the pattern is state s + 1 here. The start is another one: a text without
    // whitespace may go on, even if the pattern asks for some.
    const engine::Automaton& pattern = *form.pattern;
    for (uint32_t state = 0; state < pattern.num_states(); ++state) add(pattern.accepts(state));
    start_ = start_after_separator_ = add(true);
    for (size_t space = 0; space < kSpaces.size(); ++space) {
      for (uint32_t state = 0; state < pattern.num_states(); ++state) {
        uint32_t next = pattern.next(state, uint8_t(kSpaces[space]));
        if (next != engine::kDead) states_[state + 1].after[space] = next + 1;
      }
      states_[start_].after[space] = states_[1].after[space];
    }
  } else if (!form.is_any) {
    start_after_separator_ = add(false);
    states_[start_after_separator_].after[0] = add(true);
  } else {
    start_ = start_after_separator_ = add(true);
    for (uint32_t state = start_, length = 0; form.max_length.value_or(1) > length; ++length) {
      uint32_t next = form.max_length ? add(true) : state;
      states_[state].after.fill(next);
      state = next;
    }
  }
}

std::optional<uint32_t> Whitespace::after(uint32_t state, uint8_t byte) const {
  size_t space = kSpaces.find(char(byte));
  if (space == std::string_view::npos) return std::nullopt;
  uint32_t next = states_[state].after[space];
  return next == kNone ? std::nullopt : std::optional(next);
}

}  // namespace structout::json
