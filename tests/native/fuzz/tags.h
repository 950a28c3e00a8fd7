// Text between tags: where stops end it, and grammars that go on there.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "automata/compile.h"
#include "automata/free_text.h"
#include "automata/raw_strings.h"
#include "automata/rules.h"
#include "base/utf8.h"
#include "draws.h"
#include "grammar/token_masks/compiled_grammar.h"
#include "grammar/token_masks/grammar_matcher.h"
#include "texts.h"

namespace structout::fuzz {

struct Tags {
  std::vector<std::string> stops, excluded;
  uint32_t num_anywhere;
};

inline bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The exits that the definition in free_text.h opens after a text in which no stop has ended
// before, and whether the text may be at all. `excluded_end`: the first end of an excluded
// text, or the text's size and more.
inline std::vector<uint32_t> exits_after(const std::string& text, const Tags& tags, size_t excluded_end) {
  size_t longest = 0;
  for (const std::string& stop : tags.stops) {
    if (ends_with(text, stop)) longest = std::max(longest, stop.size());
  }
  std::vector<uint32_t> exits;
  for (uint32_t i = 0; longest > 0 && i < tags.stops.size(); ++i) {
    bool is_saved = excluded_end > text.size() - longest;
    if (is_saved && tags.stops[i].size() == longest && ends_with(text, tags.stops[i])) exits.push_back(i);
  }
  if (longest > 0 || excluded_end <= text.size()) return exits;
  for (uint32_t i = 0; i < tags.num_anywhere; ++i) exits.push_back(uint32_t(tags.stops.size()) + i);
  return exits;
}

// The beginning or all of a stop or of an excluded text, so that they are met and missed.
inline std::string part_of_a_tag(const Tags& tags, Draws& draws) {
  size_t i = draws.below(tags.stops.size() + tags.excluded.size() + 1);
  if (i == tags.stops.size() + tags.excluded.size()) return "";
  const std::string& tag = i < tags.stops.size() ? tags.stops[i] : tags.excluded[i - tags.stops.size()];
  return tag.substr(0, draws.one_in(3) ? 1 + draws.below(tag.size()) : tag.size());
}

// Reads a text of drawn bytes as the automaton and as its definition.
inline void check_exits(const engine::Branching& branching, const Tags& tags, Draws& draws) {
  uint32_t state = 0;
  uint8_t rest = engine::utf8::kBetween;
  std::string text, next;
  size_t excluded_end = SIZE_MAX;
  for (int step = 0; step < 30; ++step) {
    for (const std::string& each : tags.excluded) {
      if (ends_with(text, each)) excluded_end = std::min(excluded_end, text.size());
    }
    std::vector<uint32_t> exits = branching.states[state].exits;
    std::sort(exits.begin(), exits.end());
    std::vector<uint32_t> expected;
    if (rest == engine::utf8::kBetween) expected = exits_after(text, tags, excluded_end);
    check(exits == expected, "text between tags has the exits of its definition");
    const std::vector<engine::Edge>& edges = branching.states[state].edges;
    if (edges.empty()) return;
    if (next.empty()) next = draws.one_in(3) ? std::string(1, char(draws.below(256))) : part_of_a_tag(tags, draws);
    if (next.empty()) continue;
    uint8_t byte = uint8_t(next[0]);
    next.erase(0, 1);
    auto edge = std::find_if(edges.begin(), edges.end(),
                             [&](const engine::Edge& each) { return each.first <= byte && byte <= each.last; });
    uint8_t after = engine::utf8::after(rest, byte);
    if (edge == edges.end()) continue;
    check(after != engine::utf8::kInvalid, "text between tags is UTF-8");
    rest = after;
    state = edge->target;
    text.push_back(char(byte));
  }
}

inline void read_between_tags(engine::Branching branching, const std::string& pattern, Draws& draws) {
  engine::Limits limits = small_limits();
  engine::Rules rules;
  uint32_t root = rules.add_rule("root");
  std::vector<uint32_t> exits;
  for (uint8_t& returns : branching.returns) {
    returns = draws.one_in(2);
    exits.push_back(draws.one_in(3)   ? root
                    : draws.one_in(2) ? rules.add_regex(pattern, limits)
                                      : rules.add_text(draws.text(2)));
  }
  uint32_t text = rules.add_branching(std::move(branching), std::move(exits));
  rules.define(root, draws.one_in(2) ? text : rules.add_sequence({text, rules.add_text("<a>")}));
  auto network = std::make_shared<context_free::Network>(rules, root, context_free::NetworkOptions(), limits);
  auto index = std::make_shared<context_free::CompiledGrammar>(network, limits, vocabulary());
  if (index->is_empty()) return;
  context_free::GrammarMatcher matcher(index, {stop_token()});
  read_text(matcher, draws);
}

// The text is a pattern of arguments; the choices make the tags.
inline void fuzz_tags(const uint8_t* bytes, size_t size) {
  TextAndDraws input(bytes, size);
  Draws draws = input.draws();
  engine::Limits limits = small_limits();
  engine::Budget budget(limits);
  Tags tags;
  const std::string letters = "<>/ab\xC3\xA9";
  auto tag = [&] {
    std::string text;
    for (size_t left = 1 + draws.below(4); left > 0; --left) {
      text += draws.one_in(16) ? std::string(1, char(draws.below(256))) : std::string(1, letters[draws.below(5)]);
    }
    return draws.one_in(8) ? text + letters.substr(5) : text;
  };
  for (size_t left = draws.below(4); left > 0; --left) tags.stops.push_back(tag());
  for (size_t left = draws.below(3); left > 0; --left) {
    if (tags.stops.empty() || draws.one_in(2)) {
      tags.excluded.push_back(tag());
    } else {  // the inside of a stop, or what goes on behind it
      const std::string& stop = tags.stops[draws.below(tags.stops.size())];
      std::string text = stop.substr(draws.below(stop.size()), 1 + draws.below(2));
      tags.excluded.push_back(draws.one_in(2) ? text : text + tag());
    }
  }
  tags.num_anywhere = uint32_t(draws.below(3));
  compiles([&] {
    engine::Branching branching;
    try {
      branching = tags::free_text(tags.stops, tags.excluded, tags.num_anywhere, budget);
    } catch (const std::invalid_argument&) {  // a tag is not UTF-8
      return;
    }
    check_exits(branching, tags, draws);
    read_between_tags(std::move(branching), input.text, draws);
  });
  compiles([&] {
    engine::Automaton strings = engine::compile_json_string({input.text}, 0, engine::kUnbounded, limits);
    engine::Automaton raw = tags::raw_strings(strings, budget);
    check((raw.num_states() == 0) == (strings.num_states() == 0), "strings have raw forms");
  });
}

}  // namespace structout::fuzz
