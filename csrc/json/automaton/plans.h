// The obligations on one key's or item's value, and the requirements that remain once they
// are decided.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "json/automaton/contents_table.h"
#include "json/satisfiability/liveness.h"

namespace structout::json {

// The obligations on one value: its required formula, which must hold, and its tracked
// formulas, whose truth values change the formulas around the value. Example: under "if"
// with {"properties": {"a": {"const": 1}}}, "is 1" is tracked for the value of "a", and its
// truth value decides between "then" and "else".
struct Plan {
  static constexpr uint32_t kNoValues = UINT32_MAX;

  bool is_live = false;
  uint32_t value_formulas = 0;                    // a list: the required formula, then the tracked ones
  std::vector<std::pair<Formula, bool>> decided;  // child formulas whose truth follows from the required formula
  std::vector<Formula> tracked;
  uint32_t values = kNoValues;  // a set of constants: the truth values are the bits of an index in it
};

// The truth of a child formula for a value; none while it is undecided.
using Truth = std::function<std::optional<bool>(Formula)>;

class Planner {
 public:
  Planner(Schema& schema, Liveness& liveness, ListTable& lists)
      : schema_(schema), formulas_(schema.formulas()), liveness_(liveness), lists_(lists) {}

  // The object or array around a value: the derivative of a formula on it by the value, in
  // terms of the truth of child formulas, and a test that such a formula is still
  // satisfiable.
  struct Context {
    std::function<Formula(Formula, const Truth&)> derivative;
    std::function<bool(Formula)> is_live;
  };
  Plan plan(const Numbers& formulas, const Context& context);

  // True if the required formula of an object or array is to be one of some constants
  // (Op::kAmong), and nothing else.
  bool is_among(const Numbers& formulas) const { return formulas_.op(formulas[0]) == Op::kAmong; }
  // The plan for a key, or for an item with its index as the key, of such a value.
  // `is_past`: true for names that cannot follow any more.
  Plan plan_among(const Numbers& formulas, uint32_t key, const std::function<bool(uint32_t)>& is_past);
  // The formulas after such a key or item.
  Numbers after_among(const Numbers& formulas, uint32_t key, const std::function<bool(uint32_t)>& is_past,
                      const Plan& plan, const std::vector<bool>& truth_values);

  // The truth of the child formulas of a plan, given the truth values on a value. Children
  // that it does not track or decide make no difference, and count as true.
  static Truth truth(const Plan& plan, const std::vector<bool>& truth_values);

  // The derivative of a formula by a key or an item: the formula on those that follow it.
  // It has an atom kUndecided for each child whose truth is not decided.
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
