// How many values may follow, where keys or items must differ from earlier ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "json/arrays.h"
#include "json/objects.h"
#include "json/used_values.h"

namespace structout::json {

class Machine;

class ValueCounts {
 public:
  static constexpr uint32_t kMany = Texts::kManyTexts;
  static constexpr size_t kUnknownItems = SIZE_MAX;

  // How many different values there are.
  struct Count {
    uint32_t least = 1;     // kMany: so many or more
    bool is_exact = false;  // no more than these; then no object that is open has free keys
    bool are_many() const { return least == kMany; }
  };

  explicit ValueCounts(Machine& machine);

  // How many values the innermost array, object or scalar can still become from a state; or,
  // from a state that waits for a value, once that value is complete. `names`: positions of
  // those that have come. `num_items`: how many items an array whose items differ has then,
  // or kUnknownItems.
  Count values(State state, const PastKeys& names = {}, size_t num_items = kUnknownItems);
  Count values_after(State waiting, const PastKeys& names, size_t num_items = kUnknownItems);
  bool are_many(State state);  // whichever names have come

  // For a state before or inside a key: whether one may follow that is not used. `begin`:
  // where the used ones are that begin as this one has begun.
  bool has_unused_key(State state, const TextSet& used, TextSet::Cursor begin, const PastKeys& names);
  // The same for an item that is a scalar.
  bool has_unused_scalar(State state, TextSet::Cursor begin);
  // For a state before or inside a key: whether free keys may be used up.
  bool may_lack_keys(State state);

  // Whether there are as many different items as an array needs. Throws where it is not known.
  bool has_enough_items(uint32_t array);
  // For states of an array: whether it may depend on the values of earlier items whether
  // it can be completed, and whether it can.
  bool is_tight(State state);
  bool stays_live(State state, const TextSet& used);
  // For a tight state that waits for an item: whether it matters what else the item
  // satisfies, even if it is none of the few values; and whether the item may become one of
  // these. With one `contains` alone it does not matter: what was used of it has counted.
  bool depends_on_verdicts(State waiting);
  bool may_be_scarce(State waiting, const std::string& text);

 private:
  Count counted(State state, const PastKeys& names, size_t num_items);
  Count values_of(uint32_t children);
  Count objects(uint32_t object, const PastKeys& names);
  Count objects_after(const InKey& key, const PastKeys& names);
  Count members(uint32_t object, uint32_t key, const PastKeys& names);
  Count arrays(uint32_t array, size_t num_items);
  Count constants(Formula among);
  bool may_be_named(const InKey& key, const PastKeys& names);
  // The formulas on items that few values satisfy, and that some item may satisfy.
  std::vector<Formula> few_children(uint32_t array);

  Machine& machine_;
  Schema& schema_;
  Formulas& formulas_;
  Texts& texts_;
  Liveness& liveness_;
  Planner& planner_;
  ListTable& lists_;
  Objects& objects_;
  Arrays& arrays_;
  std::unordered_map<State, Count> counts_;
  std::unordered_set<State> being_counted_;
  size_t depth_ = 0;
  std::unordered_map<State, bool> are_many_;
  std::unordered_map<uint32_t, bool> tight_arrays_;
};

}  // namespace structout::json
