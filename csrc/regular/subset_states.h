// The states of the subset construction, created on demand.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "regular/nfa.h"

namespace structout::engine {

// A state is a set of items: a node, and the list of open lookahead conditions on the way
// to it. Equal sets have one number. States are never removed; the limits on states and set
// entries bound the memory.
class SubsetStates {
 public:
  SubsetStates(const Nfa& nfa, Budget& budget);
  ~SubsetStates();

  // The state for texts that begin at a node. `is_at_start`: true if ^ matches there.
  uint32_t add_start(uint32_t node, bool is_at_start);

  uint32_t size() const;

  // True if the state is the empty set: nothing is accepted from it.
  bool is_empty(uint32_t state) const;

  // The edges of a state and its nodes. Edges may lead to new states. Valid until the
  // next call.
  struct Expansion {
    std::vector<Edge> edges;
    std::vector<uint32_t> accepting;  // nodes where the text may end
    std::vector<uint32_t> others;     // nodes that take another byte
  };
  const Expansion& expand(uint32_t state);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace structout::engine
