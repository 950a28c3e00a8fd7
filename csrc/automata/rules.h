// Languages of rules: expressions over texts, regular expressions and named rules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "automata/automaton.h"
#include "automata/character_graph.h"
#include "automata/regex.h"
#include "base/limits.h"

namespace structout::engine {

// Collects the parts of expressions. Each method that adds a part returns its number,
// which later parts refer to. Throws std::out_of_range for other numbers.
class Rules {
 public:
  Rules() = default;

  // Texts that stand in a JSON string, in canonical spelling (Spelling::kJsonCanonical),
  // but with the characters of `escaped` written as \u00 and two digits. Throws
  // std::invalid_argument if one of them is not ASCII punctuation, or has another escape.
  static Rules in_json_string(const std::string& escaped);

  // `bytes`: in UTF-8, if the text stands in a JSON string.
  uint32_t add_text(std::string bytes);

  // One character of the set.
  uint32_t add_characters(CodePointSet set, bool is_negated);

  // A text that the regular expression matches. Anchors and lookahead are refused: in
  // them the rest of the whole text would matter.
  uint32_t add_regex(const std::string& pattern, const Limits& limits);

  uint32_t add_automaton(Automaton automaton);

  // `exits`: what follows each exit. Throws std::invalid_argument if their number is wrong.
  uint32_t add_branching(Branching branching, std::vector<uint32_t> exits);
  uint32_t add_sequence(std::vector<uint32_t> parts);
  uint32_t add_alternatives(std::vector<uint32_t> parts);
  uint32_t add_repetition(uint32_t part, uint32_t min, uint32_t max);
  uint32_t add_intersection(std::vector<uint32_t> parts);
  uint32_t add_complement(uint32_t part);

  // A terminal: a part that a lexer reads as one symbol.
  uint32_t add_terminal(uint32_t part, TerminalOptions options);

  // A text of an embedded language: one with an automaton of its own, such as a JSON
  // schema.
  uint32_t add_embedded(std::shared_ptr<EmbeddedLanguage> language);

  // One token of a set of ids, whatever its bytes are, for example <|tool_call|>. The
  // ranges may be in any order. Throws std::invalid_argument for a range that ends
  // before it begins, or above kMaxToken.
  static constexpr uint32_t kMaxToken = (1u << 31) - 2;
  uint32_t add_tokens(TokenRanges ids);

  // A reference to a new rule, which has to be defined later.
  uint32_t add_rule(std::string name);
  void define(uint32_t reference, uint32_t body);
  void set_priority(uint32_t reference, int priority);

  // Refuses rules that refer to themselves, unless each such reference ends its rule:
  // a ::= "x" a | "y" is regular.
  void check_recursion(uint32_t root) const;

  // The minimal automaton of a part. Throws PatternError if the part is not regular: if it
  // has tokens, embedded languages, or recursion other than at the end of a rule.
  Automaton compile(uint32_t root, const Limits& limits) const;

  const Pattern& pattern() const { return pattern_; }

 private:
  struct Reference {
    uint32_t rule;
    bool is_last;  // nothing follows it in its rule
  };

  uint32_t add(Part part);
  void check_plain() const;
  std::string spelled(const std::string& text) const;
  void spell_set(uint32_t part);
  uint32_t add(PartKind kind, std::vector<uint32_t> parts);
  uint32_t add_indexed(PartKind kind, size_t index);
  void check(uint32_t part) const;
  Rule& rule_of(uint32_t reference);
  std::vector<Reference> references(uint32_t part) const;
  std::string cycle(const std::vector<std::vector<uint32_t>>& targets, uint32_t from, uint32_t to) const;

  Pattern pattern_;
  Spelling spelling_ = Spelling::kUtf8;
  std::string escaped_;
};

}  // namespace structout::engine
