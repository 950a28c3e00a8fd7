// Texts of random grammars that follow their masks or do not. Each mask is compared with a
// walk over whole places.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/rules/captures.h"
#include "grammar/token_masks/compiled_grammar.h"
#include "grammar/token_masks/grammar_matcher.h"
#include "random_grammar.h"

namespace structout::random_grammars {

[[noreturn]] inline void fail(const char* what, const context_free::GrammarMatcher& matcher) {
  std::fprintf(stderr, "%s after the tokens", what);
  for (uint32_t token : matcher.recent_tokens(matcher.num_tokens())) std::fprintf(stderr, " %u", token);
  std::fprintf(stderr, "\n");
  std::abort();
}

// Ends the process if something disagrees. `stop`: the stop token.
inline void read_text(const std::shared_ptr<context_free::CompiledGrammar>& index,
                      const context_free::CaptureParser& parser, uint32_t stop, int num_steps = 25) {
  context_free::GrammarMatcher matcher(index, {stop});
  std::vector<uint32_t> row(matcher.row_words());
  std::vector<std::unique_ptr<engine::Matcher>> forks;
  for (int step = 0; step < num_steps && !matcher.is_terminated(); ++step) {
    if (below(8) == 0) forks.push_back(matcher.copy());
    bool allows_any = matcher.fill(matcher.current_state(), row.data());
    if (!matcher.error().empty()) return;
    if (!allows_any) fail("no token is allowed", matcher);
    std::vector<uint32_t> walked = matcher.walked_row();
    walked[stop >> 5] |= row[stop >> 5] & (1u << (stop & 31));
    if (walked != row) fail("the mask differs from a walk", matcher);
    std::vector<int64_t> allowed;
    for (uint32_t token = 0; token <= stop; ++token) {
      if (row[token >> 5] >> (token & 31) & 1) allowed.push_back(token);
    }
    int64_t token = below(8) == 0 ? int64_t(below(stop + 2)) - 1 : allowed[below(allowed.size())];
    bool is_allowed = token >= 0 && (row[size_t(token) >> 5] >> (token & 31) & 1);
    if (matcher.accept(&token, 1) != is_allowed && matcher.error().empty()) {
      fail("a token is accepted against the mask", matcher);
    }
    if (below(6) == 0) matcher.rollback(below(matcher.num_tokens() + 1));
    matcher.forced();
    if (below(5) == 0) matcher.shortest_end();
    if (below(5) == 0) matcher.config_number();
    std::vector<uint32_t> states;
    std::vector<int64_t> drafts;
    for (size_t i = below(4); i > 0; --i) drafts.push_back(allowed[below(allowed.size())]);
    if (drafts.empty() || matcher.is_terminated()) continue;
    matcher.append_draft_states(drafts.data(), drafts.size(), states);
    for (uint32_t state : states) {
      if (state != engine::kFreeRow) matcher.fill(state, row.data());
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
    if (each.begin > each.end || each.end > num_bytes) fail("a capture is out of bounds", matcher);
  }
}

}  // namespace structout::random_grammars
