// An automaton that texts leave in several ways.
#pragma once

#include <cstdint>
#include <vector>

#include "regular/automaton.h"

namespace structout::engine {

// Unlike an Automaton it need not be minimal, and it tells where a text goes on: an exit
// has a number, and the part of a grammar that holds this automaton has a child for each.
struct Branching {
  struct State {
    std::vector<Edge> edges;      // by increasing bytes, without overlaps
    std::vector<uint32_t> exits;  // numbers of those that are open here
  };
  std::vector<State> states;  // the start is state 0

  // By exit: whether the text comes back to the start after the child. The others leave
  // for good.
  std::vector<uint8_t> returns;
};

}  // namespace structout::engine
