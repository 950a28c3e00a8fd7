// Unit tests of json/formulas/formula.h: random formulas against truth tables.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "expect.h"
#include "json/document/errors.h"
#include "json/formulas/formula.h"

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

engine::Limits without_clock() {
  engine::Limits limits;
  limits.seconds = 1e9;
  return limits;
}

struct Tester {
  engine::Budget budget{without_clock()};
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

void test_what_always_and_never_hold_vanish() {
  Tester tester;
  Formulas& formulas = tester.formulas;
  const Formula atom = tester.atoms[0], always = json::kAlways, never = json::kNever;
  EXPECT(formulas.conjunction({}) == always && formulas.disjunction({}) == never);
  EXPECT(formulas.conjunction({always, always}) == always && formulas.disjunction({never, never}) == never);
  EXPECT(formulas.conjunction({always, atom}) == atom && formulas.disjunction({never, atom}) == atom);
  EXPECT(formulas.conjunction({atom, never}) == never && formulas.disjunction({atom, always}) == always);
  EXPECT(formulas.exactly_one({}) == never && formulas.exactly_one({never, never}) == never);
  EXPECT(formulas.exactly_one({never, atom}) == atom && formulas.exactly_one({atom, atom}) == never);
  EXPECT(formulas.exactly_one({always, atom}) == formulas.negation(atom));
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

// The steps that `work` takes.
template <typename Work>
uint64_t steps_of(engine::Budget& budget, const Work& work) {
  const uint64_t before = budget.total();
  work();
  return budget.total() - before;
}

void test_work_is_counted() {
  engine::Budget budget(without_clock());
  Formulas formulas(budget);
  std::vector<Formula> atoms;
  EXPECT(steps_of(budget, [&] {
           for (uint32_t i = 0; i < 100; ++i) atoms.push_back(formulas.atom(Op::kRequired, i));
         }) == 100);
  EXPECT(steps_of(budget, [&] { formulas.atom(Op::kRequired, 0); }) == 0);  // known
  Formula all = json::kAlways;
  EXPECT(steps_of(budget, [&] { all = formulas.conjunction(atoms); }) == 100);
  // The operands are read, and those that are left are one more conjunction.
  EXPECT(steps_of(budget, [&] { formulas.assign(all, atoms[0], true); }) == 100 + 99);

  engine::StepBudget step_budget(50);
  budget.draw_from(&step_budget);
  bool is_refused = false;
  try {
    formulas.conjunction(atoms);
  } catch (const engine::StepBudgetExceeded&) {
    is_refused = true;
  }
  EXPECT(is_refused);
}

// The limit that `add` meets when it is called again and again, at most so many times,
// and what it has got.
template <typename Add>
json::CacheFull limit_of(uint32_t max_calls, const Add& add) {
  for (uint32_t i = 0; i < max_calls; ++i) {
    try {
      add(i);
    } catch (const json::CacheFull& error) {
      return error;
    }
  }
  EXPECT(!"a limit is met");
  std::abort();
}

void test_formulas_are_limited() {
  Tester tester;
  const json::CacheFull met =
      limit_of((1 << 20) + 1, [&](uint32_t i) { tester.formulas.atom(Op::kRequired, kNumAtoms + i); });
  EXPECT(met.limit == "schema_formulas" && met.max == 1 << 20 && met.got == met.max + 1);
  EXPECT(tester.formulas.size() == met.got);
}

void test_operands_are_limited() {
  constexpr uint32_t kOfOne = 1 << 17;
  Tester tester;
  std::vector<Formula> atoms;
  for (uint32_t i = 0; i <= kOfOne; ++i) atoms.push_back(tester.formulas.atom(Op::kRequired, kNumAtoms + i));
  std::vector<Formula> all_but_one(atoms.begin(), atoms.end() - 1);
  const json::CacheFull met = limit_of((1 << 23) / kOfOne + 1, [&](uint32_t i) {
    all_but_one[i] = atoms.back();
    tester.formulas.conjunction(all_but_one);
    all_but_one[i] = atoms[i];
  });
  EXPECT(met.limit == "schema_operands" && met.max == 1 << 23 && met.got == met.max + kOfOne);
}

// What vectors have room for is at most twice of what is in them.
bool is_memory_of(size_t memory, size_t stored) { return stored <= memory && memory <= 2 * stored; }

void test_memory_is_that_of_nodes_and_of_operands() {
  constexpr size_t kOfNode = sizeof(json::FormulaNode) + 4 * sizeof(uint32_t);  // with its entries in the hash table
  Tester of_nodes, of_operands;
  for (uint32_t i = 0; i < 1000; ++i) of_nodes.formulas.atom(Op::kRequired, kNumAtoms + i);
  EXPECT(is_memory_of(of_nodes.formulas.memory_bytes(), of_nodes.formulas.size() * kOfNode));

  std::vector<Formula> atoms;
  for (uint32_t i = 0; i < 1000; ++i) atoms.push_back(of_operands.formulas.atom(Op::kRequired, kNumAtoms + i));
  size_t num_operands = 0;
  for (; atoms.size() > 800; atoms.pop_back()) {
    of_operands.formulas.conjunction(atoms);
    num_operands += atoms.size();
  }
  EXPECT(is_memory_of(of_operands.formulas.memory_bytes(),
                      of_operands.formulas.size() * kOfNode + num_operands * sizeof(Formula)));
}

}  // namespace

int main() {
  test_operators_mean_what_they_say();
  test_equal_formulas_have_one_number();
  test_what_always_and_never_hold_vanish();
  test_assignment_and_substitution_change_one_atom();
  test_atoms_are_those_that_literals_have();
  test_work_is_counted();
  test_formulas_are_limited();
  test_operands_are_limited();
  test_memory_is_that_of_nodes_and_of_operands();
  return 0;
}
