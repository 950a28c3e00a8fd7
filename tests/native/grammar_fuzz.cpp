// Builds random grammars, with and without a lexer, with embedded schemas and with tokens that
// are read by their ids, and reads texts that follow their masks or do not. Compares each mask
// with a walk over whole places, and asks which parts of whole texts were read as which rules.
// Built with sanitizers. Arguments: the number of grammars, and seconds of CPU time after which
// no more of them are begun. Prints how many grammars had texts, and how many were refused.
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
#include "context_free/grammar_index.h"
#include "context_free/grammar_matcher.h"
#include "json/schema_index.h"
#include "regular/rules.h"

using namespace structout;

namespace {

std::mt19937_64 rng(23);

size_t below(size_t bound) { return rng() % bound; }

using Languages = std::vector<std::shared_ptr<engine::EmbeddedLanguage>>;

class RandomGrammar {
 public:
  RandomGrammar(bool has_lexer, const Languages& languages) : has_lexer_(has_lexer), languages_(languages) {
    for (size_t i = 0, count = 1 + below(5); i < count; ++i) references_.push_back(rules.add_rule("r"));
    for (uint32_t reference : references_) rules.define(reference, part(3));
    root = references_[0];
    options.has_lexer = has_lexer;
    for (size_t i = 0, count = has_lexer ? below(2) : 0; i < count; ++i) options.ignored.push_back(regular(1));
    options.ignores_once = below(2) == 0;
  }

  engine::Rules rules;
  uint32_t root;
  context_free::NetworkOptions options;
  const std::vector<uint32_t>& references() const { return references_; }

 private:
  uint32_t part(int depth) {
    if (!languages_.empty() && below(6) == 0) return rules.add_embedded(languages_[below(languages_.size())]);
    if (!languages_.empty() && below(10) == 0) {
      uint32_t first = uint32_t(250 + below(20));
      return rules.add_tokens({{first, first + uint32_t(below(3))}, {456, 456}});
    }
    if (depth == 0 || below(4) == 0) return below(3) != 0 ? symbol() : references_[below(references_.size())];
    return inner(depth, [this](int below_it) { return part(below_it); });
  }

  uint32_t symbol() {
    if (!has_lexer_) return regular(1);
    uint32_t terminal = regular(2);
    engine::TerminalOptions how;
    how.is_lazy = below(6) == 0;
    if (below(5) == 0) how.max_tokens = uint32_t(below(4));
    if (languages_.empty() && below(6) == 0) {
      how.stop = below(2) == 0 ? "a" : "()";
      how.is_lazy = true;
      terminal = rules.add_sequence({terminal, rules.add_text(how.stop)});
    }
    return rules.add_terminal(terminal, how);
  }

  uint32_t regular(int depth) {
    static const std::vector<std::string> kTexts = {"a", "b", "ab", "(", ")", "", "\xC3\xA9", "\xFF"};
    if (depth == 0 || below(3) == 0) {
      if (below(4) != 0) return rules.add_text(kTexts[below(kTexts.size())]);
      engine::CodePointSet set;
      set.add('a', uint32_t('a' + below(3)));
      return rules.add_characters(set, below(4) == 0);
    }
    if (below(8) == 0) return rules.add_complement(regular(depth - 1));
    return inner(depth, [this](int below_it) { return regular(below_it); });
  }

  template <typename Part>
  uint32_t inner(int depth, Part part) {
    std::vector<uint32_t> parts;
    for (size_t i = 0, count = 1 + below(3); i < count; ++i) parts.push_back(part(depth - 1));
    switch (below(3)) {
      case 0:
        return rules.add_sequence(parts);
      case 1:
        return rules.add_alternatives(parts);
    }
    uint32_t min = uint32_t(below(3));
    return rules.add_repetition(parts[0], min, below(2) != 0 ? engine::kUnbounded : min + uint32_t(below(3)));
  }

  const bool has_lexer_;
  const Languages& languages_;
  std::vector<uint32_t> references_;
};

std::shared_ptr<const engine::VocabularyTrie> vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, char(byte)));
  static const std::string kBytes = "aaabb()c{}[]\"\"1,:\xC3\xA9";
  for (int i = 0; i < 200; ++i) {
    std::string token;
    for (size_t length = 2 + below(4); token.size() < length;) token.push_back(kBytes[below(kBytes.size())]);
    tokens.push_back(token);
  }
  tokens.push_back("");
  tokens.push_back("");
  return std::make_shared<engine::VocabularyTrie>(tokens);
}

Languages schemas(const std::shared_ptr<const engine::VocabularyTrie>& tokens) {
  static const std::vector<std::string> kSchemas = {
      R"({"type": "integer"})",
      R"({"type": "array", "items": {"enum": [1, 11, "a", "ab"]}, "uniqueItems": true})",
      R"({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2})",
      R"({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["b"]})",
      R"({"type": "string", "maxLength": 2})",
      R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}})",
  };
  Languages languages;
  for (const std::string& schema : kSchemas) {
    json::TextForm form;
    if (below(2) == 0) form.key_order = json::KeyOrderRule::kDeclared;
    if (below(2) == 0) form.whitespace.is_any = false;
    size_t max_growth = below(2) == 0 ? 1 : json::SchemaIndex::kMaxGrowth;
    languages.push_back(
        std::make_shared<json::SchemaIndex>(schema, json::SchemaOptions(), form, engine::Limits(), tokens, max_growth));
  }
  return languages;
}

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

}  // namespace

int main(int, char** arguments) {
  std::shared_ptr<const engine::VocabularyTrie> tokens = vocabulary();
  engine::Limits limits;
  limits.states = 2'000;
  limits.seconds = 5;
  int num_with_texts = 0, num_refused = 0;
  const Languages none, some = schemas(tokens);
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
    } catch (const std::runtime_error&) {
      ++num_refused;
    }
  }
  std::printf("%d %d\n", num_with_texts, num_refused);
  return 0;
}
