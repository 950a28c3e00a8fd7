// What is asked of the value of a key or of an item, and what its truth leaves to ask.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "json/contents_table.h"
#include "json/liveness.h"

namespace structout::json {

// For the value of a key or for an item: its goal, and what else of it is tracked because
// the formulas around it depend on it.
struct Plan {
  static constexpr uint32_t kNoValues = UINT32_MAX;

  bool is_live = false;
  uint32_t children = 0;                          // the goal, then what is tracked
  std::vector<std::pair<Formula, bool>> decided;  // children whose truth follows from the goal
  std::vector<Formula> tracked;
  uint32_t values = kNoValues;  // the set of constants of which the verdicts tell one, in binary
};

// Whether a child formula holds for a value, if it is known.
using Truth = std::function<std::optional<bool>(Formula)>;

class Planner {
 public:
  Planner(Schema& schema, Liveness& liveness, ListTable& lists)
      : schema_(schema), formulas_(schema.formulas()), liveness_(liveness), lists_(lists) {}

  // What planning needs to know of the formulas around a value.
  struct Context {
    std::function<Formula(Formula, const Truth&)> residual;
    std::function<bool(Formula)> is_live;
  };
  Plan plan(const Numbers& formulas, const Context& context);

  // Whether an object or array must be one of some constants, and nothing more is asked.
  bool is_among(const Numbers& formulas) const { return formulas_.op(formulas[0]) == Op::kAmong; }
  // A key, or an item with its index as the key, of such a value. `is_past`: of a name.
  Plan plan_among(const Numbers& formulas, uint32_t key, const std::function<bool(uint32_t)>& is_past);
  // What is left to ask after it.
  Numbers after_among(const Numbers& formulas, uint32_t key, const std::function<bool(uint32_t)>& is_past,
                      const Plan& plan, const std::vector<bool>& verdicts);

  // What the verdicts on a value tell of the children that its plan knows.
  static Truth truth(const Plan& plan, const std::vector<bool>& verdicts);

  // The formula on what follows a key or an item.
  Formula after_key(Formula object, const Key& key, const KeyOrder& order, const PastKeys& past, const Truth& truth);
  Formula after_item(Formula array, const Truth& truth);

 private:
  class PlanMaker;

  Formula truth_formula(Formula child, const Truth& truth);

  Schema& schema_;
  Formulas& formulas_;
  Liveness& liveness_;
  ListTable& lists_;
};

}  // namespace structout::json
