#include "json/automaton/plans.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>

namespace structout::json {

namespace {

constexpr size_t kMaxTracked = 400;       // formulas beside the required one
constexpr size_t kMaxTruthValues = 1024;  // on one value, that leave different formulas

}  // namespace

// Makes a plan from the derivatives of the formulas around a value. A child formula that
// must have one truth value for the first of these to stay live is decided, and becomes a
// part of the value's required formula. The others are tracked, and the required formula
// excludes their impossible combinations.
class Planner::PlanMaker {
 public:
  PlanMaker(Planner& planner, const Numbers& formulas, const Context& context)
      : planner_(planner), formulas_(planner.formulas_), context_(context) {
    for (Formula formula : formulas) {
      after_.push_back(context.derivative(formula, [](Formula) { return std::nullopt; }));
      for (Formula atom : formulas_.atoms(after_.back())) {
        const FormulaNode& node = formulas_[atom];
        if (node.op == Op::kUndecided &&
            std::find(child_formulas_.begin(), child_formulas_.end(), node.a) == child_formulas_.end()) {
          child_formulas_.push_back(node.a);
        }
      }
    }
    formulas_.visit_literals(after_[0], [&](Formula atom, bool is_negated) {
      const FormulaNode& node = formulas_[atom];
      if (node.op == Op::kUndecided) signs_[node.a] |= is_negated ? kNegative : kPositive;
    });
  }

  Plan make() {
    if (!may_be_live(after_[0])) return {};
    Formula required = formulas_.conjunction(split_children());
    for (Formula& formula : after_) {
      for (auto [child, value] : plan_.decided) formula = with(formula, child, value);
    }
    std::vector<Formula> tracked;
    for (Formula child : plan_.tracked) {
      if (is_irrelevant(child)) {
        for (Formula& formula : after_) formula = with(formula, child, true);
      } else {
        tracked.push_back(child);
      }
    }
    plan_.tracked = tracked;
    if (tracked.size() > kMaxTracked) throw engine::LimitError("schema_children", tracked.size(), kMaxTracked);
    required = formulas_.conjunction({required, values_before(after_[0])});
    if (!planner_.liveness_.is_satisfiable(required)) return plan_;
    plan_.is_live = true;
    Numbers list = {required};
    list.insert(list.end(), tracked.begin(), tracked.end());
    plan_.value_formulas = planner_.lists_.number_of(list);
    return plan_;
  }

 private:
  // The signs of a child in the formula that must stay live; 0 if it does not occur.
  static constexpr int kPositive = 1, kNegative = 2, kMixed = kPositive | kNegative;

  Formula undecided(Formula child) { return formulas_.atom(Op::kUndecided, child); }

  Formula with(Formula formula, Formula child, bool value) {
    return formulas_.assign(formula, undecided(child), value);
  }

  // Gives all literals on the value one truth. With kNever the result implies the formula
  // for every value; with kAlways it follows from the formula.
  Formula bound(Formula formula, Formula truth) {
    const FormulaNode node = formulas_[formula];
    auto speaks_of_value = [this](Formula part) { return formulas_.op(part) == Op::kUndecided; };
    switch (node.op) {
      case Op::kAnd:
      case Op::kOr: {
        std::vector<Formula> operands = formulas_.operands(formula);
        for (Formula& operand : operands) operand = bound(operand, truth);
        return node.op == Op::kAnd ? formulas_.conjunction(std::move(operands))
                                   : formulas_.disjunction(std::move(operands));
      }
      case Op::kOne: {
        const std::vector<Formula>& atoms = formulas_.atoms(formula);
        return std::any_of(atoms.begin(), atoms.end(), speaks_of_value) ? truth : formula;
      }
      default:
        return speaks_of_value(node.op == Op::kNot ? node.a : formula) ? truth : formula;
    }
  }
  bool is_surely_live(Formula formula) { return context_.is_live(bound(formula, kNever)); }
  bool may_be_live(Formula formula) { return context_.is_live(bound(formula, kAlways)); }

  // Splits the child formulas in decided and tracked ones, and returns the decided
  // literals.
  std::vector<Formula> split_children() {
    bool is_always_live = is_surely_live(after_[0]);
    auto is_live_with = [&](Formula child, bool value) {
      int sign = signs_[child];
      bool is_known = is_always_live || sign == 0 || sign == (value ? kPositive : kNegative);
      return is_known || may_be_live(with(after_[0], child, value));
    };
    std::vector<Formula> required;
    for (Formula child : child_formulas_) {
      bool may_hold = is_live_with(child, true);
      if (may_hold && is_live_with(child, false)) {
        plan_.tracked.push_back(child);
        continue;
      }
      plan_.decided.emplace_back(child, may_hold);
      required.push_back(may_hold ? child : formulas_.negation(child));
    }
    return required;
  }

  bool is_irrelevant(Formula child) {
    return std::all_of(after_.begin(), after_.end(),
                       [&](Formula formula) { return with(formula, child, true) == with(formula, child, false); });
  }

  // The values before `rest` that leave it live, as a formula on the child formulas that it
  // mentions. Equal rests share one result, as the nodes of binary decision diagrams do
  // (Bryant, 1986): so the cost of independent conditions adds up, and does not multiply.
  Formula values_before(Formula rest) {
    auto known = values_before_.find(rest);
    if (known != values_before_.end()) return known->second;
    if (values_before_.size() == kMaxTruthValues) {
      throw engine::LimitError("schema_verdicts", values_before_.size() + 1, kMaxTruthValues);
    }
    Formula values = kNever;
    if (may_be_live(rest)) values = is_surely_live(rest) ? kAlways : values_by_child(rest);
    return values_before_[rest] = values;
  }

  Formula values_by_child(Formula rest) {
    Formula child = *std::find_if(plan_.tracked.begin(), plan_.tracked.end(),
                                  [&](Formula each) { return formulas_.mentions(rest, undecided(each)); });
    Formula with_true = with(rest, child, true), with_false = with(rest, child, false);
    Formula rest_if_true = with_decided(with_true, child, true);
    bool decides_others = rest_if_true != with_true;
    Formula if_true = values_before(rest_if_true), if_false = values_before(with_decided(with_false, child, false));
    // A child with one sign has a harder truth and an easier one. A continuation that is
    // live with the harder truth is live with the easier one too, so its branch needs no
    // literal, unless the child has decided others.
    if (signs_[child] != kPositive) if_false = formulas_.conjunction({formulas_.negation(child), if_false});
    if (signs_[child] != kNegative || decides_others) if_true = formulas_.conjunction({child, if_true});
    return either(if_true, if_false);
  }

  // The disjunction of two formulas, with their common operands outside of it.
  Formula either(Formula a, Formula b) {
    auto parts_of = [this](Formula formula) { return formulas_.conjuncts(formula); };
    const std::vector<Formula> of_a = parts_of(a), of_b = parts_of(b);
    std::vector<Formula> common, only_a, only_b;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(common));
    std::set_difference(of_a.begin(), of_a.end(), common.begin(), common.end(), std::back_inserter(only_a));
    std::set_difference(of_b.begin(), of_b.end(), common.begin(), common.end(), std::back_inserter(only_b));
    common.push_back(
        formulas_.disjunction({formulas_.conjunction(std::move(only_a)), formulas_.conjunction(std::move(only_b))}));
    return formulas_.conjunction(std::move(common));
  }

  // Replaces the other child formulas in `rest` whose truth follows from that of `child`;
  // each costs up to two decisions of satisfiability. For a child that fails, this runs
  // only if the child has both signs, as values that lack one property seldom share
  // another.
  Formula with_decided(Formula rest, Formula child, bool value) {
    if (is_surely_live(rest) || (!value && signs_[child] != kMixed)) return rest;
    Formula literal = value ? child : formulas_.negation(child);
    std::unordered_map<Formula, Formula> truths;  // of the atoms of other child formulas
    for (Formula other : plan_.tracked) {
      Formula atom = undecided(other);
      if (!formulas_.mentions(rest, atom)) continue;
      auto may_hold = [&](Formula also) {
        return planner_.liveness_.is_satisfiable(formulas_.conjunction({literal, also}));
      };
      if (!may_hold(other)) {
        truths[atom] = kNever;
      } else if (!may_hold(formulas_.negation(other))) {
        truths[atom] = kAlways;
      }
    }
    return formulas_.substitute(rest, [&](Formula atom) {
      auto found = truths.find(atom);
      return found == truths.end() ? atom : found->second;
    });
  }

  Planner& planner_;
  Formulas& formulas_;
  const Context& context_;
  Numbers after_;  // derivatives by the value, with an atom for the truth of each child
  std::vector<Formula> child_formulas_;
  std::map<Formula, int> signs_;
  Plan plan_;
  std::unordered_map<Formula, Formula> values_before_;  // by the rest
};

Plan Planner::plan(const Numbers& formulas, const Context& context) {
  return PlanMaker(*this, formulas, context).make();
}

Plan Planner::plan_among(const Numbers& formulas, uint32_t key, const std::function<bool(uint32_t)>& is_past) {
  const FormulaNode required = formulas_[formulas[0]];
  std::vector<uint32_t> values;  // that the key may have, in increasing order
  for (auto [value, constant] : schema_.constants().with_key(required.a, key)) {
    bool is_known = !values.empty() && values.back() == value;
    if (!is_known && (!is_past || schema_.may_come(constant, required.b + 1, is_past))) values.push_back(value);
  }
  schema_.budget().spend(schema_.constants().with_key(required.a, key).size() + 1);
  Plan plan;
  if (values.empty()) return plan;
  plan.is_live = true;
  plan.values = schema_.constants().set_of(values);
  Numbers list = {schema_.listed(plan.values)};
  for (uint32_t bit = 0; (values.size() - 1) >> bit != 0; ++bit) list.push_back(schema_.listed(plan.values, bit));
  plan.value_formulas = lists_.number_of(list);
  return plan;
}

Numbers Planner::after_among(const Numbers& formulas, uint32_t key, const std::function<bool(uint32_t)>& is_past,
                             const Plan& plan, const std::vector<bool>& truth_values) {
  size_t index = 0;
  for (size_t bit = 0; bit + 1 < truth_values.size(); ++bit) index |= size_t(truth_values[bit + 1]) << bit;
  uint32_t value = schema_.constants()[plan.values][index];
  Numbers after;
  for (Formula formula : formulas) {
    const FormulaNode node = formulas_[formula];
    if (node.op != Op::kAmong) {  // nothing is asked
      after.push_back(formula);
      continue;
    }
    const Constants::WithValue& all = schema_.constants().with_key(node.a, key);
    auto begin = std::lower_bound(all.begin(), all.end(), std::pair(value, 0u));
    std::vector<uint32_t> constants;
    for (auto each = begin; each != all.end() && each->first == value; ++each) {
      if (!is_past || schema_.may_come(each->second, node.b + 1, is_past)) constants.push_back(each->second);
    }
    schema_.budget().spend(constants.size() + 1);
    after.push_back(schema_.among(std::move(constants), node.b + 1));
  }
  return after;
}

Formula Planner::truth_formula(Formula child, const Truth& truth) {
  if (child == kAlways || child == kNever) return child;
  std::optional<bool> holds = truth(child);
  if (!holds) return formulas_.atom(Op::kUndecided, child);
  return *holds ? kAlways : kNever;
}

Truth Planner::truth(const Plan& plan, const std::vector<bool>& truth_values) {
  std::map<Formula, bool> truths(plan.decided.begin(), plan.decided.end());
  for (size_t i = 0; i < plan.tracked.size(); ++i) truths[plan.tracked[i]] = truth_values[i + 1];
  return [truths](Formula child) -> std::optional<bool> {
    auto found = truths.find(child);
    return found == truths.end() || found->second;  // a child that is not followed makes no difference
  };
}

Formula Planner::after_key(Formula object, const Key& key, const KeyOrder& order, const PastKeys& past,
                           const Truth& truth) {
  auto is_past = [&](uint32_t name) {
    auto found = order.positions.find(name);
    return found != order.positions.end() && past[found->second];
  };
  return formulas_.substitute(object, [&](Formula atom) -> Formula {
    const FormulaNode node = formulas_[atom];
    switch (node.op) {
      case Op::kRequired:
        if (node.a == key.name) return kAlways;
        return is_past(node.a) ? kNever : atom;
      case Op::kMinKeys:
        return node.a == 1 ? kAlways : formulas_.atom(Op::kMinKeys, node.a - 1);
      case Op::kForName:
      case Op::kForKeys: {
        if (liveness_.applies(node, key)) {
          Formula rest = node.op == Op::kForName ? kAlways : atom;
          return formulas_.conjunction({rest, truth_formula(node.b, truth)});
        }
        return node.op == Op::kForName && is_past(node.a) ? kAlways : atom;
      }
      default:
        return atom;
    }
  });
}

Formula Planner::after_item(Formula array, const Truth& truth) {
  return formulas_.substitute(array, [&](Formula atom) -> Formula {
    const FormulaNode node = formulas_[atom];
    switch (node.op) {
      case Op::kForItems: {
        uint32_t begin = node.a == 0 ? 0 : node.a - 1, end = node.b == UINT32_MAX ? node.b : node.b - 1;
        Formula rest = begin >= end ? kAlways : formulas_.atom(Op::kForItems, begin, end, node.c);
        return node.a > 0 ? rest : formulas_.conjunction({rest, truth_formula(node.c, truth)});
      }
      case Op::kMinItems:
        return node.a == 1 ? kAlways : formulas_.atom(Op::kMinItems, node.a - 1);
      case Op::kHas: {
        Formula holds = truth_formula(node.a, truth);
        Formula fewer = node.b == 1 ? kAlways : formulas_.atom(Op::kHas, node.a, node.b - 1);
        return formulas_.disjunction(
            {formulas_.conjunction({holds, fewer}), formulas_.conjunction({formulas_.negation(holds), atom})});
      }
      default:
        return atom;
    }
  });
}

}  // namespace structout::json
