// The automaton of one rule: over symbols, and over calls of rules.
#pragma once

#include <cstdint>
#include <vector>

#include "base/limits.h"

namespace structout::context_free {

constexpr uint32_t kNone = UINT32_MAX;

// Symbols from kFirstToken on are the ids of tokens, plus kFirstToken. Smaller ones are
// bytes or, with a lexer, the numbers of terminals.
constexpr uint32_t kFirstToken = 1u << 31;

// Reads any of the symbols first ... last.
struct SymbolEdge {
  uint32_t first, last, target;
  bool operator==(const SymbolEdge& other) const {
    return first == other.first && last == other.last && target == other.target;
  }
};

// Reads any text of a rule, or of an embedded language.
struct Call {
  uint32_t rule, target;
  bool operator==(const Call& other) const { return rule == other.rule && target == other.target; }
};

// A state of a rule's automaton. Edges do not overlap, and each rule is called once at
// most, so the automaton is deterministic. Parsing is not: a symbol of an edge may also be
// the first one of a called rule's texts.
struct RuleState {
  bool is_accepting = false;
  std::vector<SymbolEdge> edges;  // by increasing symbols
  std::vector<Call> calls;        // by increasing rules
  std::vector<Call> embedded{};   // calls of embedded languages, once the network has told them apart
};

// A minimal automaton. The start is state 0: no edge or call leads to it, and it does not
// accept, because the caller of the rule knows if its text may be empty.
using RuleAutomaton = std::vector<RuleState>;

// The nondeterministic automaton of a rule, as it is built from the pattern.
class RuleNfa {
 public:
  static constexpr uint32_t kStart = 0;

  RuleNfa() { add_node(); }

  uint32_t add_node();
  void add_edge(uint32_t node, const SymbolEdge& edge) { nodes_[node].edges.push_back(edge); }
  void add_call(uint32_t node, const Call& call) { nodes_[node].calls.push_back(call); }
  void add_empty(uint32_t node, uint32_t target) { nodes_[node].empty.push_back(target); }
  void set_accepting(uint32_t node) { nodes_[node].is_accepting = true; }
  uint32_t num_nodes() const { return uint32_t(nodes_.size()); }

  // Copies an automaton, whose start becomes another way on from `node`. Returns the node
  // after it.
  uint32_t add_automaton(uint32_t node, const RuleAutomaton& automaton);

  // True if empty edges and calls of the given rules alone lead to the end.
  bool matches_empty(const std::vector<uint8_t>& is_nullable) const;

  // Adds an empty edge beside each call of the given rules, so that it may read nothing.
  void skip_calls(const std::vector<uint8_t>& is_nullable);

  // True if there is a path to the end whose calls are all calls of the given rules.
  bool has_text(const std::vector<uint8_t>& is_productive) const;

  // Drops the paths that lead to no text.
  void remove_dead_ends(const std::vector<uint8_t>& is_productive);

  RuleAutomaton determinize(engine::Budget& budget) const;

  struct Node {
    bool is_accepting = false;
    std::vector<SymbolEdge> edges;
    std::vector<Call> calls;
    std::vector<uint32_t> empty;
    bool matters() const { return is_accepting || !edges.empty() || !calls.empty(); }
  };

  const Node& node(uint32_t number) const { return nodes_[number]; }

 private:
  std::vector<uint32_t> closure(std::vector<uint32_t> nodes, std::vector<uint8_t>& is_reached) const;
  std::vector<uint8_t> live_nodes(const std::vector<uint8_t>& is_productive) const;

  std::vector<Node> nodes_;
};

// Removes left recursion from rules that begin with each other: `rules[i]` is the number of
// `automata[i]`. Each rule then begins with what any of them begins with, other than each
// other, and continues with what follows where one begins with another (the left-corner
// transform: Rosenkrantz and Lewis, "Deterministic left corner parsing", 1970). For
// example, `sum: sum "+" n | n` becomes `n ("+" n)*`.
void remove_left_recursion(const std::vector<uint32_t>& rules, std::vector<RuleAutomaton>& automata,
                           engine::Budget& budget);

}  // namespace structout::context_free
