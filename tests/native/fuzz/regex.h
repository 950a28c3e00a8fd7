// Regular expressions: what compiles is a language with a complement, and means the same as
// a rule, in strings of JSON and in a file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "automata/compile.h"
#include "automata/rules.h"
#include "draws.h"
#include "grammar/token_masks/compiled_grammar.h"
#include "grammar/token_masks/grammar_matcher.h"
#include "language/index_matcher.h"
#include "texts.h"
#include "token_masks/token_index.h"

namespace structout::fuzz {

inline engine::IndexMatcher matcher_of(const engine::Automaton& automaton) {
  return {std::make_shared<engine::TokenIndex>(automaton, vocabulary()), {stop_token()}};
}

inline void check_operations(const engine::Automaton& automaton) {
  engine::Budget budget(small_limits());
  engine::Automaton others = complement(automaton, budget);
  check(complement(others, budget) == automaton, "the complement of a complement is the language");
  check(intersection(automaton, others, budget).num_states() == 0, "nothing is in a language and in its complement");
  check(union_of(automaton, difference(others, automaton, budget), budget).num_states() == 1,
        "everything is in a language or in its complement");
  check(engine::Automaton::deserialize(automaton.serialize()) == automaton, "a saved automaton is loaded as it was");
}

inline void check_rule(const std::string& pattern, const engine::Automaton& automaton, Draws& draws) {
  engine::Limits limits = small_limits();
  engine::Rules rules;
  uint32_t root = rules.add_rule("root");
  rules.define(root, rules.add_regex(pattern, limits));  // refuses anchors and lookahead
  check(rules.compile(root, limits) == automaton, "a pattern means as a rule what it means alone");
  uint32_t both = rules.add_rule("both");
  rules.define(both, rules.add_intersection({rules.add_automaton(automaton), rules.add_complement(root)}));
  check(rules.compile(both, limits).num_states() == 0, "no text is one of a rule and one of its complement");
  if (automaton.num_states() == 0) return;
  auto network = std::make_shared<context_free::Network>(rules, root, context_free::NetworkOptions(), limits);
  auto index = std::make_shared<context_free::CompiledGrammar>(network, limits, vocabulary());
  context_free::GrammarMatcher as_grammar(index, {stop_token()});
  engine::IndexMatcher as_automaton = matcher_of(automaton);
  read_alike(as_automaton, as_grammar, draws);
}

inline void fuzz_regex(const uint8_t* bytes, size_t size) {
  TextAndDraws input(bytes, size);
  Draws draws = input.draws();
  const engine::Limits limits = small_limits();
  engine::Automaton automaton;
  bool is_compiled = compiles([&] { automaton = engine::compile_regex(input.text, limits); });
  if (is_compiled) {
    compiles([&] { check_operations(automaton); });
    compiles([&] { check_rule(input.text, automaton, draws); });
    if (automaton.num_states() > 0) {
      engine::IndexMatcher matcher = matcher_of(automaton);
      read_text(matcher, draws);
    }
  }
  if (draws.one_in(4)) {
    compiles([&] {
      engine::compile_json_string({input.text}, uint32_t(draws.below(3)), uint32_t(2 + draws.below(3)), limits);
    });
  }
  if (draws.one_in(4)) compiles([&] { engine::compile_string_content(input.text, limits); });
}

}  // namespace structout::fuzz
