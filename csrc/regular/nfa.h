// Nondeterministic automata over bytes, made from syntax trees.
#pragma once

#include <cstdint>
#include <vector>

#include "regular/automaton.h"
#include "regular/character_graph.h"
#include "regular/regex.h"

namespace structout::engine {

enum class NodeKind : uint8_t { kBytes, kSplit, kStart, kEnd, kLookahead, kAccept };

// Where matching may stand, in front of:
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

// What must hold for the rest of a text. Such a condition is followed beside the nodes,
// so its automaton accepts whole texts: what it asks for, then anything.
struct Lookahead {
  Automaton at_start;  // where the rest is the whole text
  Automaton inside;
};

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

// The texts that lead from a node to an accepting one. `is_at_start`: whether ^ matches
// at the node.
Automaton determinize(const Nfa& nfa, uint32_t start, bool is_at_start, Budget& budget);

}  // namespace structout::engine
