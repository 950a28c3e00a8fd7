// The automaton of one rule: over symbols, and over calls of rules.
#pragma once

#include <cstdint>
#include <vector>

#include "base/limits.h"

namespace structout::context_free {

constexpr uint32_t kNone = UINT32_MAX;

// Symbols from here on are tokens, by their ids. Those below are bytes, or the numbers of
// terminals.
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

// Edges do not overlap, and each rule is called once at most. So an automaton is
// deterministic, though a symbol may also be the first of a called rule's texts.
struct RuleState {
  bool is_accepting = false;
  std::vector<SymbolEdge> edges;  // by increasing symbols
  std::vector<Call> calls;        // by increasing rules
  std::vector<Call> embedded{};   // calls of embedded languages, once the network has told them apart
};

// Minimal. The start is state 0: no edge or call leads to it, and it does not accept,
// because whoever calls the rule knows whether its text may be empty.
using RuleAutomaton = std::vector<RuleState>;

// Collects the ways through a rule.
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

  // Whether nothing but calls of the given rules leads to the end.
  bool matches_empty(const std::vector<uint8_t>& is_nullable) const;

  // Lets calls of the given rules read nothing.
  void skip_calls(const std::vector<uint8_t>& is_nullable);

  // Whether there is a text, if calls of the given rules have one.
  bool has_text(const std::vector<uint8_t>& is_productive) const;

  // Drops the ways that lead to no text.
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

// Removes left recursion from rules that begin with each other: `rules[i]` is the number
// of `automata[i]`. Each rule begins with what none of them begins with, and goes on with
// what follows where one begins with another (the left-corner transform: Rosenkrantz and
// Lewis, "Deterministic left corner parsing", 1970).
void remove_left_recursion(const std::vector<uint32_t>& rules, std::vector<RuleAutomaton>& automata,
                           engine::Budget& budget);

}  // namespace structout::context_free
