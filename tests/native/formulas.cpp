// Unit tests of json/formula.h: random formulas against truth tables.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "expect.h"
#include "json/formula.h"

using namespace structout;
using json::Formula;
using json::Formulas;
using json::Op;

namespace {

constexpr uint32_t kNumAtoms = 5;
using Table = uint32_t;  // bit i: the truth where atom k is bit k of i
constexpr Table kAll = UINT32_MAX;

std::mt19937_64 rng(1);
size_t below(size_t bound) { return rng() % bound; }

struct Tester {
  engine::Limits limits;
  engine::Budget budget{limits};
  Formulas formulas{budget};
  std::vector<Formula> atoms;

  Tester() {
    for (uint32_t i = 0; i < kNumAtoms; ++i) atoms.push_back(formulas.atom(Op::kRequired, i));
  }

  static Table table_of_atom(uint32_t number) {
    Table table = 0;
    for (uint32_t i = 0; i < 1u << kNumAtoms; ++i) table |= (i >> number & 1) << i;
    return table;
  }

  // The truth table of a formula, by its own account.
  Table table(Formula formula) {
    Table table = 0;
    for (uint32_t i = 0; i < 1u << kNumAtoms; ++i) {
      bool holds = formulas.evaluate(formula, [&](Formula atom) { return (i >> formulas[atom].a & 1) != 0; });
      table |= Table(holds) << i;
    }
    return table;
  }

  // A random formula, and its table from the operators' meaning alone.
  std::pair<Formula, Table> random(int depth) {
    if (depth == 0 || below(4) == 0) {
      if (below(12) == 0) return {json::kAlways, kAll};
      if (below(12) == 0) return {json::kNever, 0};
      uint32_t number = uint32_t(below(kNumAtoms));
      return {atoms[number], table_of_atom(number)};
    }
    size_t kind = below(4);
    if (kind == 0) {
      auto [formula, table] = random(depth - 1);
      return {formulas.negation(formula), ~table};
    }
    std::vector<Formula> operands;
    Table all = kAll, any = 0, one = 0, several = 0;
    for (size_t i = 0, count = below(4); i < count; ++i) {
      auto [formula, table] = random(depth - 1);
      operands.push_back(formula);
      all &= table;
      several |= any & table;
      any |= table;
    }
    one = any & ~several;
    if (kind == 1) return {formulas.conjunction(operands), all};
    if (kind == 2) return {formulas.disjunction(operands), any};
    return {formulas.exactly_one(operands), one};
  }
};

void test_operators_mean_what_they_say() {
  Tester tester;
  for (int i = 0; i < 5'000; ++i) {
    auto [formula, expected] = tester.random(4);
    EXPECT(tester.table(formula) == expected);
    EXPECT(tester.table(tester.formulas.negation(formula)) == ~expected);
  }
}

void test_equal_formulas_have_one_number() {
  Tester tester;
  Formulas& formulas = tester.formulas;
  const std::vector<Formula>& atoms = tester.atoms;
  for (int i = 0; i < 2'000; ++i) {
    std::vector<Formula> operands;
    for (int j = 0; j < 4; ++j) operands.push_back(tester.random(2).first);
    std::vector<Formula> shuffled = operands;
    std::shuffle(shuffled.begin(), shuffled.end(), rng);
    shuffled.push_back(shuffled[0]);
    EXPECT(formulas.conjunction(operands) == formulas.conjunction(shuffled));
    EXPECT(formulas.disjunction(operands) == formulas.disjunction(shuffled));
  }
  EXPECT(formulas.negation(formulas.negation(atoms[0])) == atoms[0]);
  EXPECT(formulas.conjunction({atoms[0], formulas.negation(atoms[0])}) == json::kNever);
  EXPECT(formulas.disjunction({atoms[0], formulas.negation(atoms[0])}) == json::kAlways);
  EXPECT(formulas.conjunction({atoms[0], formulas.disjunction({atoms[0], atoms[1]})}) == atoms[0]);
  EXPECT(formulas.exactly_one({atoms[0], atoms[0], atoms[1]}) ==
         formulas.conjunction({formulas.negation(atoms[0]), atoms[1]}));
}

void test_assignment_and_substitution_change_one_atom() {
  Tester tester;
  for (int i = 0; i < 2'000; ++i) {
    auto [formula, expected] = tester.random(4);
    uint32_t number = uint32_t(below(kNumAtoms));
    auto [other, other_table] = tester.random(2);
    Formula atom = tester.atoms[number], replacement = other;
    Formula substituted =
        tester.formulas.substitute(formula, [&](Formula found) { return found == atom ? replacement : found; });
    Table with_false = 0, with_true = 0, with_other = 0;
    for (uint32_t j = 0; j < 1u << kNumAtoms; ++j) {
      Table if_false = expected >> (j & ~(1u << number)) & 1, if_true = expected >> (j | 1u << number) & 1;
      with_false |= if_false << j;
      with_true |= if_true << j;
      with_other |= ((other_table >> j & 1) != 0 ? if_true : if_false) << j;
    }
    EXPECT(tester.table(tester.formulas.assign(formula, atom, false)) == with_false);
    EXPECT(tester.table(tester.formulas.assign(formula, atom, true)) == with_true);
    EXPECT(tester.table(substituted) == with_other);
  }
}

void test_atoms_are_those_that_literals_have() {
  Tester tester;
  for (int i = 0; i < 2'000; ++i) {
    auto [formula, expected] = tester.random(4);
    std::vector<Formula> visited;
    tester.formulas.visit_literals(formula, [&](Formula atom, bool) { visited.push_back(atom); });
    std::sort(visited.begin(), visited.end());
    visited.erase(std::unique(visited.begin(), visited.end()), visited.end());
    EXPECT(tester.formulas.atoms(formula) == visited);
    for (uint32_t number = 0; number < kNumAtoms; ++number) {
      bool is_visited = std::binary_search(visited.begin(), visited.end(), tester.atoms[number]);
      EXPECT(tester.formulas.mentions(formula, tester.atoms[number]) == is_visited);
      Table atom = Tester::table_of_atom(number);
      // What does not mention an atom does not depend on it.
      EXPECT(is_visited || (expected & ~atom) << (1u << number) == (expected & atom));
    }
  }
}

void test_work_is_counted() {
  engine::Limits limits;
  engine::Budget budget(limits);
  Formulas formulas(budget);
  std::vector<Formula> atoms;
  for (uint32_t i = 0; i < 100; ++i) atoms.push_back(formulas.atom(Op::kRequired, i));
  engine::WorkAllowance allowance(50);
  budget.draw_from(&allowance);
  bool is_refused = false;
  try {
    formulas.conjunction(atoms);
  } catch (const engine::OverAllowance&) {
    is_refused = true;
  }
  EXPECT(is_refused);
}

}  // namespace

int main() {
  test_operators_mean_what_they_say();
  test_equal_formulas_have_one_number();
  test_assignment_and_substitution_change_one_atom();
  test_atoms_are_those_that_literals_have();
  test_work_is_counted();
  return 0;
}
