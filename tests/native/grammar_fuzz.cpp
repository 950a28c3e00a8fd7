// Builds random grammars, with and without a lexer, with embedded schemas and earlier ones of
// these grammars, and with tokens that are read by their ids, and reads texts that follow
// their masks or do not. Compares each mask with a walk over whole places, and asks which
// parts of whole texts were read as which rules. Built with sanitizers, or to hunt at length.
// Arguments: the seed, the number of grammars, and seconds of CPU time after which no more of
// them are begun. Prints how many grammars had texts, and how many were refused.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <stdexcept>

#include "grammar/rules/as_automaton.h"
#include "grammar/token_masks/embedded_grammar.h"
#include "grammar_texts.h"

using namespace structout;
using namespace structout::random_grammars;

namespace {

// Adds a grammar in the place of an earlier one, if it can be embedded.
void embed(const std::shared_ptr<context_free::CompiledGrammar>& index, size_t num_schemas, Languages& languages) try {
  constexpr size_t kMaxGrammars = 4;
  auto grammar = std::make_shared<context_free::EmbeddedGrammar>(index);
  if (grammar->first_bytes().none()) return;
  if (languages.size() < num_schemas + kMaxGrammars) {
    languages.push_back(grammar);
  } else {
    languages[num_schemas + below(kMaxGrammars)] = grammar;
  }
} catch (const engine::PatternError&) {  // it reads tokens, or counts them
}

}  // namespace

int main(int, char** arguments) {
  rng.seed(std::strtoul(arguments[1], nullptr, 10));
  std::shared_ptr<const engine::VocabularyTrie> tokens = vocabulary();
  engine::Limits limits;
  limits.states = 2'000;
  limits.seconds = 5;
  int num_with_texts = 0, num_refused = 0;
  const Languages none;
  Languages some = schemas(tokens);
  const size_t num_schemas = some.size();
  std::clock_t last = std::clock() + std::clock_t(std::atoi(arguments[3])) * CLOCKS_PER_SEC;
  for (int i = 0; i < std::atoi(arguments[2]) && std::clock() < last; ++i) {
    std::fprintf(stderr, "grammar %d\n", i);
    RandomGrammar grammar(below(2) == 0, below(3) == 0 ? none : some);
    try {
      auto network = std::make_shared<context_free::Network>(grammar.rules, grammar.root, grammar.options, limits);
      context_free::as_automaton(*network, limits);
      auto index =
          std::make_shared<context_free::CompiledGrammar>(network, limits, tokens, below(2) == 0 ? 1 : 8 << 20);
      if (index->is_empty()) {
        ++num_refused;
        continue;
      }
      ++num_with_texts;
      context_free::CaptureParser parser(grammar.rules, grammar.root, grammar.options, grammar.references(), limits);
      for (int text = 0; text < 3; ++text) read_text(index, parser, tokens->size() - 1);
      embed(index, num_schemas, some);
    } catch (const std::runtime_error&) {
      ++num_refused;
    }
  }
  std::printf("%d %d\n", num_with_texts, num_refused);
  return 0;
}
