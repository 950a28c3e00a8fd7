// Merges several ordered lists of names into one order.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace structout::json {

// Orders keys as the schemas declare them: `properties` with a, c and `properties` with b,
// c give a, b, c. A topological sort (Kahn 1962) of the names, with an edge between
// neighbours in a list; among the names that may come next, the one that was added first
// does. Lists that contradict one another make a cycle, which begins at its name that was
// added first.
class DeclaredOrder {
 public:
  void add(const std::vector<uint32_t>& list);

  // All names once. Each follows its predecessors in all lists, unless they form a cycle;
  // names that no list orders keep the order of their addition.
  std::vector<uint32_t> names() const;

  // True if some lists contradict one another.
  bool is_contradicted() const;

 private:
  struct Name {
    uint32_t name;
    std::vector<uint32_t> before = {}, after = {};  // neighbours in lists, by index
  };

  uint32_t index_of(uint32_t name);
  // Calls at_cycle() for each cycle, after which its name that was added first comes next.
  template <typename AtCycle>
  std::vector<uint32_t> sorted(AtCycle at_cycle) const;
  uint32_t first_of_cycle(uint32_t index, const std::vector<bool>& is_placed) const;

  std::vector<Name> names_;
  std::unordered_map<uint32_t, uint32_t> indices_;  // by name
  std::unordered_set<uint64_t> neighbours_;         // pairs of indices
};

}  // namespace structout::json
