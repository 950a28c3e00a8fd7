// Builds random grammars, with and without a lexer, with embedded schemas and earlier ones of
// these grammars, and with tokens that are read by their ids, and reads texts that follow
// their masks or do not. Compares each mask with a walk over whole places, and asks which
// parts of whole texts were read as which rules. Built with sanitizers. Arguments: the number
// of grammars, and seconds of CPU time after which no more of them are begun. Prints how many
// grammars had texts, and how many were refused.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "context_free/as_automaton.h"
#include "context_free/captures.h"
#include "context_free/embedded_grammar.h"
#include "context_free/grammar_index.h"
#include "context_free/grammar_matcher.h"
#include "json/schema_index.h"
#include "random_grammar.h"
#include "regular/rules.h"

using namespace structout;
using namespace structout::random_grammars;

namespace {

void read_text(const std::shared_ptr<context_free::GrammarIndex>& index, const context_free::CaptureParser& parser,
               uint32_t stop) {
  context_free::GrammarMatcher matcher(index, {stop});
  std::vector<uint32_t> row(matcher.row_words());
  std::vector<std::unique_ptr<engine::Matcher>> forks;
  for (int step = 0; step < 25 && !matcher.is_terminated(); ++step) {
    if (below(8) == 0) forks.push_back(matcher.copy());
    bool allows_any = matcher.fill(matcher.current_state(), row.data());
    if (!matcher.error().empty()) return;
    if (!allows_any) std::abort();
    std::vector<uint32_t> walked = matcher.walked_row();
    walked[stop >> 5] |= row[stop >> 5] & (1u << (stop & 31));
    if (walked != row) std::abort();
    std::vector<int64_t> allowed;
    for (uint32_t token = 0; token <= stop; ++token) {
      if (row[token >> 5] >> (token & 31) & 1) allowed.push_back(token);
    }
    int64_t token = below(8) == 0 ? int64_t(below(stop + 2)) - 1 : allowed[below(allowed.size())];
    bool is_allowed = token >= 0 && (row[size_t(token) >> 5] >> (token & 31) & 1);
    if (matcher.accept(&token, 1) != is_allowed && matcher.error().empty()) std::abort();
    if (below(6) == 0) matcher.rollback(below(matcher.num_tokens() + 1));
    matcher.forced();
    if (below(5) == 0) matcher.shortest_end();
    if (below(5) == 0) matcher.place_number();
    std::vector<uint32_t> states;
    std::vector<int64_t> drafts;
    for (size_t i = below(4); i > 0; --i) drafts.push_back(allowed[below(allowed.size())]);
    if (drafts.empty() || matcher.is_terminated()) continue;
    matcher.append_draft_states(drafts.data(), drafts.size(), states);
    for (uint32_t state : states) {
      if (state != engine::kFreeRow) matcher.fill(state, row.data());
      if (state != engine::kFreeRow) matcher.mask_key(state);
    }
  }
  for (const auto& fork : forks) fork->fill(fork->current_state(), row.data());
  std::vector<context_free::TokenText> text;
  for (uint32_t token : matcher.recent_tokens(matcher.num_tokens())) {
    const engine::VocabularyTrie& tokens = matcher.vocabulary();
    text.push_back({token, {tokens.begin(token), tokens.end(token)}});
  }
  std::optional<std::vector<context_free::Capture>> captures = parser.captures(text);
  size_t num_bytes = 0;
  for (const context_free::TokenText& token : text) num_bytes += token.bytes.size();
  for (const context_free::Capture& each : captures ? *captures : std::vector<context_free::Capture>()) {
    if (each.begin > each.end || each.end > num_bytes) std::abort();
  }
}

// Adds a grammar in the place of an earlier one, if it can be embedded.
void embed(const std::shared_ptr<context_free::GrammarIndex>& index, size_t num_schemas, Languages& languages) try {
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
  std::shared_ptr<const engine::VocabularyTrie> tokens = vocabulary();
  engine::Limits limits;
  limits.states = 2'000;
  limits.seconds = 5;
  int num_with_texts = 0, num_refused = 0;
  const Languages none;
  Languages some = schemas(tokens);
  const size_t num_schemas = some.size();
  std::clock_t last = std::clock() + std::clock_t(std::atoi(arguments[2])) * CLOCKS_PER_SEC;
  for (int i = 0; i < std::atoi(arguments[1]) && std::clock() < last; ++i) {
    RandomGrammar grammar(below(2) == 0, below(3) == 0 ? none : some);
    try {
      auto network = std::make_shared<context_free::Network>(grammar.rules, grammar.root, grammar.options, limits);
      context_free::as_automaton(*network, limits);
      auto index = std::make_shared<context_free::GrammarIndex>(network, limits, tokens, below(2) == 0 ? 1 : 8 << 20);
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
