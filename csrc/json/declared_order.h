// An order of names that keeps those of several lists.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace structout::json {

// Collects lists of names. Where lists contradict one another, the first name that any
// list has comes first.
class DeclaredOrder {
 public:
  void add(const std::vector<uint32_t>& list);

  // All names once, each behind those before it in some list. Those that no list orders
  // stay as they were added.
  std::vector<uint32_t> names() const;

 private:
  struct Name {
    uint32_t name;
    std::vector<uint32_t> before = {}, after = {};  // neighbours in lists, by index
  };

  uint32_t index_of(uint32_t name);
  uint32_t first_of_cycle(uint32_t index, const std::vector<bool>& is_placed) const;

  std::vector<Name> names_;
  std::unordered_map<uint32_t, uint32_t> indices_;  // by name
  std::unordered_set<uint64_t> neighbours_;         // pairs of indices
};

}  // namespace structout::json
