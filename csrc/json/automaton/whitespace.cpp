#include "json/automaton/whitespace.h"

#include <stdexcept>
#include <string_view>

#include "automata/compile.h"

namespace structout::json {

namespace {

constexpr std::string_view kSpaces = " \t\n\r";
constexpr uint32_t kMaxIndentation = 32, kMaxTabs = 8;

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

// Lets a character come up to max_length times from a state on.
void Whitespace::add_repeated(uint32_t from, char space, uint32_t max_length) {
  for (uint32_t length = 0; length < max_length; ++length) {
    uint32_t next = add(true);
    states_[from].after[kSpaces.find(space)] = next;
    from = next;
  }
}

// One space, or one line feed and an indentation. Returns the start.
uint32_t Whitespace::add_indented() {
  uint32_t start = add(true);
  add_repeated(start, ' ', 1);
  add_repeated(start, '\n', 1);
  uint32_t line = uint32_t(states_.size() - 1);
  add_repeated(line, ' ', kMaxIndentation);
  add_repeated(line, '\t', kMaxTabs);
  return start;
}

void Whitespace::set_all_starts(uint32_t start) {
  after_bracket_ = after_key_ = after_colon_ = after_comma_ = before_end_ = start;
}

Whitespace::Whitespace(const WhitespaceForm& form) {
  if (form.pattern) {
    // State s of the pattern is state s + 1 here. The start is another one: a text without
    // whitespace may continue, even if the pattern asks for some.
    const engine::Automaton& pattern = *form.pattern;
    for (uint32_t state = 0; state < pattern.num_states(); ++state) add(pattern.accepts(state));
    uint32_t start = add(true);
    set_all_starts(start);
    for (size_t space = 0; space < kSpaces.size(); ++space) {
      for (uint32_t state = 0; state < pattern.num_states(); ++state) {
        uint32_t next = pattern.next(state, uint8_t(kSpaces[space]));
        if (next != engine::kDead) states_[state + 1].after[space] = next + 1;
      }
      states_[start].after[space] = states_[1].after[space];
    }
    return;
  }
  switch (form.rule) {
    case WhitespaceRule::kIndented: {
      after_bracket_ = after_comma_ = add_indented();
      before_end_ = add_indented();
      for (uint32_t state = before_end_; state < states_.size(); ++state) states_[state].may_separate = false;
      after_colon_ = add(true);
      add_repeated(after_colon_, ' ', 1);
      return;
    }
    case WhitespaceRule::kCompact:
      after_colon_ = after_comma_ = add(false);
      add_repeated(after_colon_, ' ', 1);
      return;
    case WhitespaceRule::kAny: {
      uint32_t state = add(true);
      set_all_starts(state);
      for (uint32_t length = 0; length < form.max_length.value_or(1); ++length) {
        uint32_t next = form.max_length ? add(true) : state;
        states_[state].after.fill(next);
        state = next;
      }
      return;
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
