// Boolean formulas over atoms, each stored once (hash consing): formulas of one form have
// one number, so comparing two takes constant time.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/limits.h"
#include "base/state_numbers.h"

namespace structout::json {

using Formula = uint32_t;
constexpr Formula kAlways = 0, kNever = 1;

enum class Op : uint8_t {
  kTrue,
  kFalse,
  kNot,  // a: an atom
  kAnd,  // a, b: the index of its first operand, and the number of operands
  kOr,
  kOne,  // exactly one of the operands holds
  // Atoms on any value. A child is a formula over the atoms kSchema, kConstant, kListed,
  // kClosed and kCanonicalNumber.
  kSchema,           // a: a node of the document
  kConstant,         // a: a value of the document
  kListed,           // a: a set of constants, b: kAllListed, or a bit: only those whose index in the set has it
  kClosed,           // a: a list of schemas; objects have the keys that these name, and no others
  kCanonicalNumber,  // numbers have one spelling
  // On objects and arrays.
  kAmong,  // a: a set of constants that agree with all keys or items read so far, b: the number of these
  // On objects.
  kRequired,  // a: a name
  kForName,   // a: a name, b: a child for the value of that key, if it is there
  kForKeys,   // a: a formula on texts, b: a child for the values of the keys that it describes
  kMinKeys,   // a: the number
  kFollows,   // a: an order of names, b: of these, the first that may still come
  // On arrays.
  kForItems,  // a, b: from item a to b (exclusive), c: a child
  kMinItems,  // a: the number
  kHas,       // a: a child, b: at least this number of items satisfies it
  kUnique,
  // On the rest of the text of a string or number.
  kText,       // a: a language, b: a state of its automaton
  kMinLength,  // a: characters
  // On the value that comes next: it will satisfy a child. See Plan.
  kUndecided,  // a: the child
};

constexpr uint32_t kAllListed = UINT32_MAX;

constexpr bool is_atom(Op op) { return op >= Op::kSchema; }
constexpr bool has_operands(Op op) { return op >= Op::kAnd && op <= Op::kOne; }

struct FormulaNode {
  Op op;
  uint32_t a = 0, b = 0, c = 0;
  bool operator==(const FormulaNode& other) const {
    return op == other.op && a == other.a && b == other.b && c == other.c;
  }
};

// The table of all formulas. Making one sorts its operands, simplifies it and looks it
// up by a hash. Conjunctions and disjunctions are flat, sorted and free of duplicates;
// (a & !a) is false, and a & (a | b) is a. Negation moves inwards to the atoms, and
// that of kOne grows with the square of its operands. Not every unsatisfiable formula
// simplifies to kNever: Liveness decides that. Nothing is ever removed; CacheFull if
// the table gets too large.
class Formulas {
 public:
  explicit Formulas(engine::Budget& budget);

  const FormulaNode& operator[](Formula formula) const { return nodes_[formula]; }
  Op op(Formula formula) const { return nodes_[formula].op; }
  size_t size() const { return nodes_.size(); }
  size_t memory_bytes() const;

  // The operands of kAnd, kOr or kOne, as a copy: making a formula may move the table.
  std::vector<Formula> operands(Formula formula) const {
    const FormulaNode& node = nodes_[formula];
    return {operands_.begin() + node.a, operands_.begin() + node.a + node.b};
  }
  // The operands of a conjunction; any other formula alone.
  std::vector<Formula> conjuncts(Formula formula) const {
    return op(formula) == Op::kAnd ? operands(formula) : std::vector<Formula>{formula};
  }

  Formula atom(Op op, uint32_t a = 0, uint32_t b = 0, uint32_t c = 0) { return add({op, a, b, c}); }
  Formula negation(Formula formula);
  Formula conjunction(std::vector<Formula> operands) { return combine(Op::kAnd, std::move(operands)); }
  Formula disjunction(std::vector<Formula> operands) { return combine(Op::kOr, std::move(operands)); }
  // Linear in the number of operands, while a formula of kAnd, kOr and kNot for it, as
  // "some holds and no two do", is quadratic.
  Formula exactly_one(std::vector<Formula> operands);

  // Replaces each atom by replacement(atom), a formula. Visits a subformula that has
  // operands once, however often it occurs.
  template <typename Replacement>
  Formula substitute(Formula formula, Replacement&& replacement) {
    std::unordered_map<Formula, Formula> memo;
    return substitute(formula, replacement, memo);
  }

  // Replaces one atom by its truth. Leaves operands that do not mention the atom as they
  // are.
  Formula assign(Formula formula, Formula atom, bool value);

  // The truth of a formula, given that of its atoms by truth(atom).
  template <typename Truth>
  bool evaluate(Formula formula, Truth&& truth) const {
    const FormulaNode node = nodes_[formula];
    switch (node.op) {
      case Op::kTrue:
        return true;
      case Op::kFalse:
        return false;
      case Op::kNot:
        return !evaluate(node.a, truth);
      case Op::kAnd:
      case Op::kOr:
        for (uint32_t i = node.a; i < node.a + node.b; ++i) {
          if (evaluate(operands_[i], truth) == (node.op == Op::kOr)) return node.op == Op::kOr;
        }
        return node.op == Op::kAnd;
      case Op::kOne: {
        uint32_t count = 0;
        for (uint32_t i = node.a; i < node.a + node.b; ++i) count += evaluate(operands_[i], truth);
        return count == 1;
      }
      default:
        return truth(formula);
    }
  }

  // The different atoms of a formula, in increasing order. Computed once for each formula.
  const std::vector<Formula>& atoms(Formula formula);
  bool mentions(Formula formula, Formula atom);

  // Calls visit(atom, is_negated) for each occurrence of an atom. Under kOne, an atom
  // occurs with both signs.
  template <typename Visit>
  void visit_literals(Formula formula, Visit&& visit, bool is_negated = false) const {
    const FormulaNode node = nodes_[formula];
    if (node.op == Op::kNot) {
      visit_literals(node.a, visit, !is_negated);
    } else if (has_operands(node.op)) {
      for (uint32_t i = node.a; i < node.a + node.b; ++i) {
        visit_literals(operands_[i], visit, is_negated);
        if (node.op == Op::kOne) visit_literals(operands_[i], visit, !is_negated);
      }
    } else if (is_atom(node.op)) {
      visit(formula, is_negated);
    }
  }

 private:
  Formula add(const FormulaNode& node);
  Formula add_list(Op op, const std::vector<Formula>& operands);
  Formula combine(Op op, std::vector<Formula> operands);
  Formula join(Op op, std::vector<Formula> operands) {
    return op == Op::kOne ? exactly_one(std::move(operands)) : combine(op, std::move(operands));
  }
  void check_size() const;

  template <typename Replacement>
  Formula substitute(Formula formula, Replacement&& replacement, std::unordered_map<Formula, Formula>& memo) {
    const FormulaNode node = nodes_[formula];
    if (node.op == Op::kTrue || node.op == Op::kFalse) return formula;
    if (is_atom(node.op)) return replacement(formula);
    if (node.op == Op::kNot) return negation(substitute(node.a, replacement, memo));
    auto found = memo.find(formula);
    if (found != memo.end()) return found->second;
    budget_.spend(node.b);
    std::vector<Formula> replaced;
    replaced.reserve(node.b);
    for (uint32_t i = 0; i < node.b; ++i) {
      replaced.push_back(substitute(operands_[node.a + i], replacement, memo));
      if (node.op != Op::kOne && replaced.back() == (node.op == Op::kAnd ? kNever : kAlways)) {
        return memo[formula] = replaced.back();
      }
    }
    return memo[formula] = join(node.op, std::move(replaced));
  }

  engine::Budget& budget_;
  std::vector<FormulaNode> nodes_;
  std::vector<Formula> operands_;
  engine::StateNumbers numbers_;
  std::unordered_map<Formula, std::vector<Formula>> atoms_;
};

}  // namespace structout::json
