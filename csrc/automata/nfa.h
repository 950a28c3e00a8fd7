// Nondeterministic automata over bytes, made from syntax trees.
#pragma once

#include <cstdint>
#include <vector>

#include "automata/automaton.h"
#include "automata/character_graph.h"
#include "automata/regex.h"

namespace structout::engine {

enum class NodeKind : uint8_t { kBytes, kSplit, kStart, kEnd, kLookahead, kAccept };

// A position of the matching, in front of:
//   kBytes      one byte of the edges [begin, begin + count) of Nfa::edges
//   kSplit      any of the nodes [begin, begin + count) of Nfa::targets
//   kStart      the node `begin`, at the start of the text only
//   kEnd        the node `begin`, at the end of the text only
//   kLookahead  the node `begin`, if Nfa::lookaheads[count] holds for the rest of the text
//   kAccept     nothing
struct Node {
  NodeKind kind;
  uint32_t begin = 0;
  uint32_t count = 0;
};

// The condition of a lookahead on the rest of the text. It is checked in parallel with
// the nodes that follow, so its automaton accepts the whole rest: a match of the
// lookahead, then any bytes. For a negative lookahead it is the complement of that.
struct Lookahead {
  Automaton at_start;  // where the rest is the whole text
  Automaton inside;
};

// A nondeterministic automaton. It may have several components, the parts of build_nfa():
// the nodes of part i have the numbers from component_ends[i - 1] to component_ends[i].
struct Nfa {
  std::vector<Node> nodes;
  std::vector<Edge> edges;  // to nodes
  std::vector<uint32_t> targets;
  std::vector<Lookahead> lookaheads;
  uint32_t start = 0;
  std::vector<uint32_t> component_ends;  // one past the last node of each part
};

// The automaton of the texts that any of the parts accepts. Each part has an accepting
// node of its own. Parts of the kinds kText and kAutomaton ignore the spelling.
Nfa build_nfa(const Pattern& pattern, const std::vector<uint32_t>& parts, Spelling spelling, Budget& budget);

// The minimal automaton of the texts that lead from a node to an accepting one: the
// subset construction (Rabin and Scott, "Finite automata and their decision problems",
// 1959), then minimization. `is_at_start`: true if ^ matches at the node.
Automaton determinize(const Nfa& nfa, uint32_t start, bool is_at_start, Budget& budget);

}  // namespace structout::engine
