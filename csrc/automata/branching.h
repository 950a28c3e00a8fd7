// Automata with numbered exits.
#pragma once

#include <cstdint>
#include <vector>

#include "automata/automaton.h"

namespace structout::engine {

// A deterministic automaton that texts leave through exits instead of accepting states.
// The part of a grammar that holds it has a child for each exit, which reads what
// follows. For example, tags::free_text() has an exit for each text that ends the
// search. Unlike an Automaton it need not be minimal.
struct Branching {
  struct State {
    std::vector<Edge> edges;      // by increasing bytes, without overlaps
    std::vector<uint32_t> exits;  // numbers of those that are open here
  };
  std::vector<State> states;  // the start is state 0

  // By exit: 1 if the text returns to the start after the child, 0 if it leaves the
  // part.
  std::vector<uint8_t> returns;
};

}  // namespace structout::engine
