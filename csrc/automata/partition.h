// Groups of equivalent states, for automata of any alphabet.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/limits.h"

namespace structout::engine {

// The states with an edge to state s are states[begin[s] ... begin[s + 1]].
struct Predecessors {
  // `edges`: the source and the target of each.
  Predecessors(uint32_t num_states, const std::vector<std::pair<uint32_t, uint32_t>>& edges);

  std::vector<uint32_t> begin, states;
};

// Appends the signature of a state: the labels of its edges with the classes of their
// targets. States are equivalent if they are in one initial class and their signatures
// are equal.
using Signature = std::function<void(uint32_t state, const std::vector<uint32_t>& classes, std::vector<uint64_t>& out)>;

// Splits classes of states until all states of a class have one signature. Returns the
// class of each state: the coarsest such partition that refines `initial`. Each state
// changes its class at most log2(number of states) times.
std::vector<uint32_t> coarsest_partition(const std::vector<uint32_t>& initial, const Predecessors& predecessors,
                                         const Signature& sign, Budget& budget);

}  // namespace structout::engine
