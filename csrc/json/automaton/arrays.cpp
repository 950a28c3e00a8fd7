#include "json/automaton/arrays.h"

#include <algorithm>
#include <set>

namespace structout::json {

const Plan& Arrays::item_plan(uint32_t array) {
  auto known = item_plans_.find(array);
  if (known != item_plans_.end()) return known->second;
  if (planner_.is_among(lists_[array])) {
    const Numbers formulas = lists_[array];
    Plan plan = planner_.plan_among(formulas, formulas_[formulas[0]].b, nullptr);
    return item_plans_.emplace(array, std::move(plan)).first->second;
  }
  Planner::Context context;
  context.derivative = [this](Formula formula, const Truth& truth) { return planner_.after_item(formula, truth); };
  context.is_live = [this](Formula formula) { return liveness_.is_array_live(formula); };
  Plan plan = planner_.plan(lists_[array], context);
  if (plan.is_live && are_items_unique(array)) {
    Numbers value_formulas = lists_[plan.value_formulas];
    value_formulas[0] = formulas_.conjunction({value_formulas[0], formulas_.atom(Op::kCanonicalNumber)});
    plan.is_live = liveness_.is_satisfiable(value_formulas[0]);
    plan.value_formulas = lists_.number_of(value_formulas);
  }
  return item_plans_.emplace(array, std::move(plan)).first->second;
}

std::optional<uint32_t> Arrays::after(uint32_t array, const std::vector<bool>& truth_values) {
  const Plan& plan = item_plan(array);
  Numbers formulas = lists_[array];
  if (plan.values != Plan::kNoValues) {
    formulas = planner_.after_among(formulas, formulas_[formulas[0]].b, nullptr, plan, truth_values);
  } else {
    Truth truth = Planner::truth(plan, truth_values);
    for (Formula& formula : formulas) formula = planner_.after_item(formula, truth);
  }
  if (!liveness_.is_array_live(formulas[0])) return std::nullopt;
  return lists_.number_of(formulas);
}

bool Arrays::are_items_unique(uint32_t array) const {
  for (Formula formula : lists_[array]) {
    for (Formula atom : formulas_.atoms(formula)) {
      if (formulas_.op(atom) == Op::kUnique) return true;
    }
  }
  return false;
}

uint32_t Arrays::min_items(uint32_t array) const {
  uint32_t min = 0;
  formulas_.visit_literals(lists_[array][0], [&](Formula atom, bool is_negated) {
    if (formulas_.op(atom) == Op::kMinItems && !is_negated) min = std::max(min, formulas_[atom].a);
  });
  return min;
}

uint32_t Arrays::max_items(uint32_t array) const {
  uint32_t max = UINT32_MAX;
  formulas_.visit_literals(lists_[array][0], [&](Formula atom, bool is_negated) {
    if (formulas_.op(atom) == Op::kMinItems && is_negated) max = std::min(max, formulas_[atom].a - 1);
  });
  return max;
}

std::vector<Formula> Arrays::literals(uint32_t array) const {
  Formula formula = lists_[array][0];
  return formulas_.conjuncts(formula);
}

bool Arrays::is_plain(uint32_t array) const {
  const std::vector<Formula> literals = this->literals(array);
  return std::all_of(literals.begin(), literals.end(), [this](Formula literal) {
    const FormulaNode& node = formulas_[literal];
    if (node.op == Op::kNot) return formulas_.op(node.a) == Op::kMinItems;
    if (node.op == Op::kForItems) return node.a == 0 && node.b == UINT32_MAX;
    return node.op == Op::kMinItems || node.op == Op::kUnique || node.op == Op::kTrue;
  });
}

std::vector<Arrays::ItemRequirement> Arrays::item_requirements(uint32_t array) {
  const std::vector<Formula> literals = this->literals(array);
  std::vector<FormulaNode> all;
  std::set<uint32_t> begins = {0};
  for (Formula literal : literals) {
    const FormulaNode& node = formulas_[literal];
    if (node.op != Op::kForItems) continue;
    all.push_back(node);
    begins.insert(node.a);
    if (node.b != UINT32_MAX) begins.insert(node.b);
  }
  std::vector<ItemRequirement> requirements;
  for (uint32_t begin : begins) {
    std::vector<Formula> asked;
    for (const FormulaNode& items : all) {
      if (items.a <= begin && begin < items.b) asked.push_back(items.c);
    }
    schema_.budget().spend(1 + all.size() / 16);
    requirements.push_back({begin, formulas_.conjunction(std::move(asked))});
  }
  return requirements;
}

}  // namespace structout::json
