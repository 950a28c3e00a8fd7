// Arrays as states: the formulas that the rest of an array must satisfy, item by item.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "json/automaton/plans.h"

namespace structout::json {

// An array is the number of a list of formulas on the items that are still to come. The
// first is required: it must hold. The others are tracked, because the value around the
// array depends on their truth values. Each item replaces the formulas by
// their derivatives (Brzozowski 1964, for regular expressions): after one item, minItems 3
// is minItems 2.
class Arrays {
 public:
  Arrays(Schema& schema, Liveness& liveness, Planner& planner, ListTable& lists)
      : formulas_(schema.formulas()), schema_(schema), liveness_(liveness), planner_(planner), lists_(lists) {}

  // The obligations on the next item. Computed once for each array.
  const Plan& item_plan(uint32_t array);

  // The array after an item with these truth values, which tell the truth of the plan's
  // formulas. None if the array cannot be completed any more.
  std::optional<uint32_t> after(uint32_t array, const std::vector<bool>& truth_values);

  // True if any of the formulas, tracked ones too, mentions uniqueItems.
  bool are_items_unique(uint32_t array) const;

  // Bounds on the number of further items that the required formula states. They are exact
  // if the array is plain; otherwise they may be those of one branch of a disjunction.
  uint32_t min_items(uint32_t array) const;
  uint32_t max_items(uint32_t array) const;

  // True if all items must satisfy the same schemas, and the required formula restricts the
  // array itself only in its length and by uniqueItems: there is no `contains`, no
  // `prefixItems` and no alternative.
  bool is_plain(uint32_t array) const;

  // The child formulas that items must satisfy, by their index. Each holds for the items
  // from its begin to that of the next one.
  struct ItemRequirement {
    uint32_t begin;  // the first item that must satisfy it
    Formula required;
  };
  std::vector<ItemRequirement> item_requirements(uint32_t array);

  // The operands of the required formula if it is a conjunction, else that formula alone.
  std::vector<Formula> literals(uint32_t array) const;

 private:
  Formulas& formulas_;
  Schema& schema_;
  Liveness& liveness_;
  Planner& planner_;
  ListTable& lists_;
  std::map<uint32_t, Plan> item_plans_;
};

}  // namespace structout::json
