#include "json/formulas/formula.h"

#include <algorithm>

#include "base/hash.h"
#include "base/sorted_set.h"
#include "json/document/errors.h"

namespace structout::json {

namespace {

constexpr size_t kMaxNodes = 1 << 20;
constexpr size_t kMaxOperands = 1 << 23;

}  // namespace

Formulas::Formulas(engine::Budget& budget) : budget_(budget) {
  add({Op::kTrue});
  add({Op::kFalse});
}

size_t Formulas::memory_bytes() const {
  return nodes_.capacity() * (sizeof(FormulaNode) + 4 * sizeof(uint32_t)) + operands_.capacity() * sizeof(Formula);
}

void Formulas::check_size() const {
  if (nodes_.size() > kMaxNodes) throw CacheFull("schema_formulas", nodes_.size(), kMaxNodes);
  if (operands_.size() > kMaxOperands) throw CacheFull("schema_operands", operands_.size(), kMaxOperands);
}

Formula Formulas::add(const FormulaNode& node) {
  uint64_t hash = engine::mix(engine::mix(engine::mix(uint64_t(node.op), node.a), node.b), node.c);
  auto is_equal = [&](uint32_t other) { return nodes_[other] == node; };
  auto [number, is_new] = numbers_.find_or_add(hash, is_equal, [&] { nodes_.push_back(node); });
  if (is_new) {
    budget_.spend(1);
    check_size();
  }
  return number;
}

Formula Formulas::add_list(Op op, const std::vector<Formula>& operands) {
  uint64_t hash = uint64_t(op);
  for (Formula operand : operands) hash = engine::mix(hash, operand);
  budget_.spend(operands.size());
  auto is_equal = [&](uint32_t other) {
    const FormulaNode& node = nodes_[other];
    return node.op == op && node.b == operands.size() &&
           std::equal(operands.begin(), operands.end(), operands_.begin() + node.a);
  };
  auto store = [&] {
    engine::make_room(nodes_);
    FormulaNode node{op, uint32_t(operands_.size()), uint32_t(operands.size())};
    operands_.insert(operands_.end(), operands.begin(), operands.end());
    nodes_.push_back(node);
  };
  auto [number, is_new] = numbers_.find_or_add(hash, is_equal, store);
  if (is_new) check_size();
  return number;
}

Formula Formulas::negation(Formula formula) {
  const FormulaNode node = nodes_[formula];
  switch (node.op) {
    case Op::kTrue:
      return kNever;
    case Op::kFalse:
      return kAlways;
    case Op::kNot:
      return node.a;
    case Op::kAnd:
    case Op::kOr: {
      std::vector<Formula> negated = operands(formula);
      for (Formula& operand : negated) operand = negation(operand);
      return combine(node.op == Op::kAnd ? Op::kOr : Op::kAnd, std::move(negated));
    }
    case Op::kOne: {  // for each operand: if it holds, another one does too
      std::vector<Formula> each = operands(formula), all;
      for (size_t i = 0; i < each.size(); ++i) {
        std::vector<Formula> any = each;
        any[i] = negation(each[i]);
        all.push_back(disjunction(std::move(any)));
      }
      return conjunction(std::move(all));
    }
    default:
      return add({Op::kNot, formula});
  }
}

// The names are those for a conjunction. A disjunction is its dual: true and false change
// places.
Formula Formulas::combine(Op op, std::vector<Formula> operands) {
  bool is_and = op == Op::kAnd;
  Formula zero = is_and ? kNever : kAlways, one = is_and ? kAlways : kNever;
  std::vector<Formula> flat;
  flat.reserve(operands.size());
  for (Formula operand : operands) {
    if (operand == zero) return zero;
    if (operand == one) continue;
    const FormulaNode& node = nodes_[operand];
    if (node.op == op) {
      flat.insert(flat.end(), operands_.begin() + node.a, operands_.begin() + node.a + node.b);
    } else {
      flat.push_back(operand);
    }
  }
  engine::make_set(flat);
  auto contains = [&flat](Formula other) { return std::binary_search(flat.begin(), flat.end(), other); };
  for (Formula operand : flat) {
    if (nodes_[operand].op == Op::kNot && contains(nodes_[operand].a)) return zero;
  }
  Op dual = is_and ? Op::kOr : Op::kAnd;
  auto is_absorbed = [&](Formula operand) {  // as in a & (a | b)
    const FormulaNode& node = nodes_[operand];
    return node.op == dual && std::any_of(operands_.begin() + node.a, operands_.begin() + node.a + node.b, contains);
  };
  std::vector<Formula> kept;
  kept.reserve(flat.size());
  std::copy_if(flat.begin(), flat.end(), std::back_inserter(kept),
               [&](Formula operand) { return !is_absorbed(operand); });
  if (kept.empty()) return one;
  return kept.size() == 1 ? kept[0] : add_list(op, kept);
}

Formula Formulas::exactly_one(std::vector<Formula> operands) {
  std::sort(operands.begin(), operands.end());
  std::vector<Formula> possible, excluded;
  bool is_one_true = false;
  for (size_t i = 0; i < operands.size();) {
    size_t end = i;
    while (end < operands.size() && operands[end] == operands[i]) ++end;
    bool is_repeated = end - i > 1;
    if (operands[i] == kAlways) {
      if (is_repeated) return kNever;
      is_one_true = true;
    } else if (operands[i] != kNever) {
      (is_repeated ? excluded : possible).push_back(operands[i]);
    }
    i = end;
  }
  if (is_one_true) {
    excluded.insert(excluded.end(), possible.begin(), possible.end());
    possible = {kAlways};
  }
  for (Formula& formula : excluded) formula = negation(formula);
  if (possible.empty()) return kNever;
  excluded.push_back(possible.size() == 1 ? possible[0] : add_list(Op::kOne, possible));
  return conjunction(std::move(excluded));
}

Formula Formulas::assign(Formula formula, Formula atom, bool value) {
  if (formula == atom) return value ? kAlways : kNever;
  const FormulaNode node = nodes_[formula];
  if (node.op == Op::kNot) return node.a == atom ? (value ? kNever : kAlways) : formula;
  if (!has_operands(node.op)) return formula;
  budget_.spend(node.b);
  std::vector<Formula> assigned = operands(formula);
  for (Formula& operand : assigned) {
    if (!has_operands(nodes_[operand].op) || mentions(operand, atom)) operand = assign(operand, atom, value);
  }
  return join(node.op, std::move(assigned));
}

bool Formulas::mentions(Formula formula, Formula atom) {
  const std::vector<Formula>& all = atoms(formula);
  return std::binary_search(all.begin(), all.end(), atom);
}

const std::vector<Formula>& Formulas::atoms(Formula formula) {
  auto known = atoms_.find(formula);
  if (known != atoms_.end()) return known->second;
  std::vector<Formula> atoms;
  visit_literals(formula, [&atoms](Formula atom, bool) { atoms.push_back(atom); });
  engine::make_set(atoms);
  return atoms_.emplace(formula, std::move(atoms)).first->second;
}

}  // namespace structout::json
