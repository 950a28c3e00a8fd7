// The states of the subset construction, created on demand.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "regular/nfa.h"

namespace structout::engine {

class SubsetStates {
 public:
  SubsetStates(const Nfa& nfa, Budget& budget);
  ~SubsetStates();

  // The state for texts that begin at a node. `is_at_start`: whether ^ matches there.
  uint32_t add_start(uint32_t node, bool is_at_start);

  uint32_t size() const;

  // Whether the state stands for no nodes: nothing is accepted from it.
  bool is_empty(uint32_t state) const;

  // What follows a state. Edges may lead to new states. Valid until the next call.
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
