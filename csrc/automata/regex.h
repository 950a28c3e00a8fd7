// Parses regular expressions as ECMA-262 reads them. docs/native.md has the dialect.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "automata/automaton.h"
#include "automata/branching.h"
#include "automata/code_points.h"
#include "base/limits.h"

namespace structout::engine {

enum class PartKind : uint8_t {
  kEmpty,
  kSet,
  kSequence,
  kAlternatives,
  kRepetition,
  kStart,
  kEnd,
  kLookahead,
  // Not written in regular expressions: Rules adds them.
  kText,
  kAutomaton,
  kBranching,
  kIntersection,
  kComplement,
  kTerminal,
  kRule,
  kEmbedded,
  kTokens,
};

constexpr uint32_t kUnbounded = UINT32_MAX;

// A node of the syntax tree. Nodes may share children, so the tree is a directed
// acyclic graph; only rules make cycles.
struct Part {
  PartKind kind;
  bool is_negative = false;          // of a lookahead
  uint32_t min = 0, max = 0;         // of a repetition
  uint32_t index = 0;                // into the list of Pattern for its kind
  std::vector<uint32_t> children{};  // indices into Pattern::parts
};

constexpr uint32_t kUndefined = UINT32_MAX;

// The options of a terminal: where its lexeme ends.
struct TerminalOptions {
  bool is_lazy = false;              // it ends as soon as it may
  bool ends_at_limit_only = false;   // after max_tokens, and nowhere else
  uint32_t max_tokens = kUnbounded;  // it ends after so many, if it may
  std::string stop{};                // its last bytes, which belong to what follows if that begins so
  bool operator==(const TerminalOptions& other) const {
    return is_lazy == other.is_lazy && ends_at_limit_only == other.ends_at_limit_only &&
           max_tokens == other.max_tokens && stop == other.stop;
  }
};

struct Rule {
  std::string name;
  uint32_t body = kUndefined;  // index into Pattern::parts
  int priority = 0;            // as a terminal, among those that read the same text
};

class EmbeddedLanguage;  // see language/embedded.h

// Ids of tokens: first ... last, by increasing ids, without overlap.
using TokenRanges = std::vector<std::pair<uint32_t, uint32_t>>;

struct Pattern {
  std::vector<Part> parts;
  std::vector<CodePointSet> sets;  // normalized
  std::vector<std::string> texts;
  std::vector<Automaton> automata;
  std::vector<Branching> branchings;
  std::vector<Rule> rules;
  std::vector<std::shared_ptr<EmbeddedLanguage>> embedded;
  std::vector<TokenRanges> tokens;
  std::vector<TerminalOptions> terminals;
};

// Adds the parts of a regular expression and returns the last one, which stands for the
// whole. Throws PatternError, and LimitError if groups are nested too deep.
uint32_t parse_regex(const std::string& text, const Limits& limits, Pattern& pattern);

}  // namespace structout::engine
