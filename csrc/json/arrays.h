// What arrays ask of their items.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "json/plans.h"

namespace structout::json {

// An array is the number of a list of formulas on the items that follow.
class Arrays {
 public:
  Arrays(Schema& schema, Liveness& liveness, Planner& planner, ListTable& lists)
      : formulas_(schema.formulas()), schema_(schema), liveness_(liveness), planner_(planner), lists_(lists) {}

  // What is asked of the next item.
  const Plan& item_plan(uint32_t array);

  // The array after an item with some verdicts. None if it cannot go on.
  std::optional<uint32_t> after(uint32_t array, const std::vector<bool>& verdicts);

  bool are_items_unique(uint32_t array) const;

  // How many items an array must have, and may have.
  uint32_t min_items(uint32_t array) const;
  uint32_t max_items(uint32_t array) const;

  // Whether the same is asked of all items, and nothing but their number of the array.
  bool is_plain(uint32_t array) const;

  // What is asked of items by the array as a whole, where this changes: each range of items
  // begins with another goal.
  struct ItemGoal {
    uint32_t begin;  // the first item of which it is asked
    Formula goal;
  };
  std::vector<ItemGoal> item_goals(uint32_t array);

  // The formulas that must all hold for an array.
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
