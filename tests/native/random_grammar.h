// Random grammars, with and without a lexer, with embedded schemas and with tokens that are
// read by their ids, and a vocabulary for their texts.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "automata/rules.h"
#include "grammar/rules/network.h"
#include "json/token_masks/compiled_schema.h"

namespace structout::random_grammars {

inline std::mt19937_64 rng(23);

// A number below a bound. Programs may choose otherwise than at random.
inline std::function<size_t(size_t bound)> below = [](size_t bound) { return size_t(rng() % bound); };

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

inline std::shared_ptr<const engine::VocabularyTrie> vocabulary() {
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

inline Languages schemas(const std::shared_ptr<const engine::VocabularyTrie>& tokens) {
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
    if (below(2) == 0) form.whitespace.rule = json::WhitespaceRule::kCompact;
    size_t max_growth = below(2) == 0 ? 1 : json::CompiledSchema::kMaxGrowth;
    languages.push_back(std::make_shared<json::CompiledSchema>(schema, json::SchemaOptions(), form, engine::Limits(),
                                                               tokens, max_growth));
  }
  return languages;
}

}  // namespace structout::random_grammars
