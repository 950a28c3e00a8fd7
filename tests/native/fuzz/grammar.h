// Grammars, built from the choices of the bytes: what the front ends of GBNF and Lark, which
// are Python, may ask of the engine.
#pragma once

#include <memory>
#include <utility>

#include "../grammar_texts.h"
#include "automata/automaton.h"
#include "draws.h"
#include "grammar/rules/as_automaton.h"
#include "grammar/token_masks/embedded_grammar.h"
#include "texts.h"

namespace structout::fuzz {

inline void fuzz_grammar(const uint8_t* bytes, size_t size) {
  namespace random = random_grammars;
  static const std::shared_ptr<const engine::VocabularyTrie> tokens = random::vocabulary();
  Draws draws(bytes, size);
  random::below = [&draws](size_t bound) { return draws.below(bound); };
  const engine::Limits limits = small_limits();
  random::Languages languages;
  if (draws.one_in(4)) languages = random::schemas(tokens);
  compiles([&] {
    if (draws.one_in(4)) {  // a grammar inside of the grammar
      random::RandomGrammar inner(draws.one_in(2), languages);
      auto network = std::make_shared<context_free::Network>(inner.rules, inner.root, inner.options, limits);
      auto index = std::make_shared<context_free::CompiledGrammar>(network, limits, tokens);
      auto grammar = std::make_shared<context_free::EmbeddedGrammar>(index);
      if (!index->is_empty() && grammar->first_bytes().any()) languages.push_back(std::move(grammar));
    }
    random::RandomGrammar grammar(draws.one_in(2), languages);
    auto network = std::make_shared<context_free::Network>(grammar.rules, grammar.root, grammar.options, limits);
    size_t max_growth = draws.one_in(2) ? 1 : context_free::CompiledGrammar::kMaxGrowth;
    context_free::as_automaton(*network, limits);
    auto index = std::make_shared<context_free::CompiledGrammar>(network, limits, tokens, max_growth);
    if (index->is_empty()) return;
    context_free::CaptureParser parser(grammar.rules, grammar.root, grammar.options, grammar.references(), limits);
    random::read_text(index, parser, tokens->size() - 1, kSteps);
  });
}

}  // namespace structout::fuzz
