// JSON strings whose values match patterns.
#include <stdexcept>

#include "automata/code_points.h"
#include "automata/compile.h"
#include "automata/nfa.h"

namespace structout::engine {

namespace {

const CodePointSet kAnyCharacter{{0, kLastCodePoint}};

uint32_t add_any_characters(Pattern& pattern, uint32_t min, uint32_t max) {
  Part any{PartKind::kSet};  // set 0
  if (pattern.sets.empty()) pattern.sets.push_back(kAnyCharacter);
  pattern.parts.push_back(std::move(any));
  Part repetition{PartKind::kRepetition};
  repetition.min = min;
  repetition.max = max;
  repetition.children.push_back(uint32_t(pattern.parts.size() - 1));
  pattern.parts.push_back(std::move(repetition));
  return uint32_t(pattern.parts.size() - 1);
}

Automaton spelled(const Pattern& pattern, Spelling spelling, Budget& budget) {
  Nfa nfa = build_nfa(pattern, {uint32_t(pattern.parts.size() - 1)}, spelling, budget);
  return determinize(nfa, nfa.start, true, budget);
}

// Strings in which a match is found.
Automaton with_match(const std::string& regex, Spelling spelling, Budget& budget) {
  Pattern pattern;
  Part sequence{PartKind::kSequence};
  sequence.children.push_back(add_any_characters(pattern, 0, kUnbounded));
  sequence.children.push_back(parse_regex(regex, budget.limits, pattern));
  sequence.children.push_back(add_any_characters(pattern, 0, kUnbounded));
  pattern.parts.push_back(std::move(sequence));
  return spelled(pattern, spelling, budget);
}

// Puts quotes around the content: state i becomes i + 1, between a new start and a new end.
// Minimal if `content` is.
Automaton quoted(const Automaton& content) {
  if (content.num_states() == 0) return {};
  uint32_t count = content.num_states(), end = count + 1;
  AutomatonBuilder builder;
  builder.add_state(false, {{'"', '"', 1}});
  std::vector<Edge> edges;
  for (uint32_t state = 0; state < count; ++state) {
    edges.clear();
    bool is_closed = !content.accepts(state);
    for (const Edge* edge = content.begin(state); edge < content.end(state); ++edge) {
      if (!is_closed && edge->first > '"') {
        edges.push_back({'"', '"', end});
        is_closed = true;
      }
      edges.push_back({edge->first, edge->last, edge->target + 1});
    }
    if (!is_closed) edges.push_back({'"', '"', end});
    builder.add_state(false, edges);
  }
  builder.add_state(true, {});
  return builder.numbered(0);
}

}  // namespace

Automaton compile_json_string(const std::vector<std::string>& patterns, uint32_t min_length, uint32_t max_length,
                              const Limits& limits) {
  if (min_length > max_length) return {};
  Budget budget(limits);
  bool is_bounded = min_length > 0 || max_length != kUnbounded;
  Automaton content;
  if (is_bounded || patterns.empty()) {
    Pattern lengths;
    add_any_characters(lengths, min_length, max_length);
    content = spelled(lengths, Spelling::kJson, budget);
  }
  for (size_t i = 0; i < patterns.size(); ++i) {
    Automaton matching = with_match(patterns[i], Spelling::kJson, budget);
    content = i == 0 && !is_bounded ? std::move(matching) : intersection(content, matching, budget);
  }
  return quoted(content);
}

Automaton compile_string_content(const std::string& pattern, const Limits& limits) {
  Budget budget(limits);
  return with_match(pattern, Spelling::kJsonCanonical, budget);
}

Automaton any_string_content(Spelling spelling) {
  Budget budget{Limits()};
  Pattern pattern;
  add_any_characters(pattern, 0, kUnbounded);
  return spelled(pattern, spelling, budget);
}

std::string spelled_canonically(const std::string& utf8) {
  std::vector<uint32_t> code_points;
  if (!decode_utf8(utf8, code_points)) throw std::invalid_argument("expected a text in UTF-8");
  std::string content;
  for (char character : utf8) content += canonical_spelling(character);
  return content;
}

Automaton exact_string_contents(const std::vector<std::string>& values) {
  std::vector<std::string> contents;
  for (const std::string& value : values) contents.push_back(spelled_canonically(value));
  return compile_choices(std::move(contents));
}

}  // namespace structout::engine
