// Implicants: literals (atoms or negated atoms) that together imply a formula.
#include <algorithm>

#include "json/satisfiability/liveness.h"

namespace structout::json {

// Finds one implicant by a backtracking search with unit propagation (Davis, Logemann and
// Loveland 1962). Clauses are disjunctions and kOne formulas; their operands may be
// formulas, which become clauses when they are chosen. Propagation costs what a choice
// changes: it visits a clause only when one of its own literals gets a value. The search
// learns nothing from a conflict, but callers add a clause against each implicant that no
// object or array satisfies, and search again.
class Liveness::ImplicantSearch {
 public:
  explicit ImplicantSearch(Liveness& liveness)
      : liveness_(liveness), formulas_(liveness.formulas_), preferred_(liveness.preferred_) {}
  ~ImplicantSearch() {
    for (const Variable& variable : variables_) liveness_.variable_numbers_[variable.atom] = kNone;
  }
  ImplicantSearch(const ImplicantSearch&) = delete;

  const Literals& literals() const { return literals_; }

  // Returns true if some literals imply the formula: literals() has them.
  bool find(Formula formula) {
    pending_.push_back(formula);
    for (;;) {
      if (!propagate()) {
        if (!try_next_choice()) return false;
      } else if (std::optional<uint32_t> open = open_clause()) {
        choose(*open);
      } else {
        for (Formula literal : literals_) preferred_[atom_of(literal)] = !is_negated(literal);
        return true;
      }
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  enum class Value : uint8_t { kUnknown, kTrue, kFalse };

  struct Variable {
    Formula atom;
    Value value = Value::kUnknown;
    uint32_t last_use = kNone;  // in uses_
  };

  // A literal as an operand of a clause.
  struct Use {
    uint32_t clause, variable;
    bool is_negated;
    uint32_t before;  // the previous use of the variable, or kNone
  };

  // A disjunction, or a kOne formula: exactly one operand holds.
  struct Clause {
    Formula formula;
    uint32_t num_possible;  // operands that are not excluded
    bool is_implied;        // by the operands that were taken
  };

  struct Choice {
    Formula clause;
    std::vector<Formula> operands;  // possible ones, in the order to try them
    size_t num_tried;
    size_t num_changes, num_literals;  // before the choice, to backtrack to
  };

  // Changes that backtracking undoes, in reverse order.
  enum class Change : uint8_t { kAssigned, kImplied, kExcluded, kAdded };

  bool is_literal(Formula formula) const { return !has_operands(formulas_.op(formula)); }
  bool is_negated(Formula literal) const { return formulas_.op(literal) == Op::kNot; }
  Formula atom_of(Formula literal) const { return is_negated(literal) ? formulas_[literal].a : literal; }

  uint32_t variable_of(Formula literal) {
    Formula atom = atom_of(literal);
    std::vector<uint32_t>& numbers = liveness_.variable_numbers_;
    if (numbers.size() <= atom) numbers.resize(formulas_.size(), kNone);
    if (numbers[atom] == kNone) {
      variables_.push_back({atom});  // first: the destructor forgets the numbers of variables
      numbers[atom] = uint32_t(variables_.size() - 1);
    }
    return numbers[atom];
  }

  Value value_of(Formula formula) {
    if (!is_literal(formula)) return Value::kUnknown;
    Value value = variables_[variable_of(formula)].value;
    if (value == Value::kUnknown || !is_negated(formula)) return value;
    return value == Value::kTrue ? Value::kFalse : Value::kTrue;
  }

  void note(Change change, uint32_t subject) { changes_.emplace_back(change, subject); }

  void imply(uint32_t clause) {
    if (clauses_[clause].is_implied) return;
    clauses_[clause].is_implied = true;
    note(Change::kImplied, clause);
  }

  // Takes all pending formulas and unit clauses. False if they contradict one another.
  bool propagate() {
    while (!pending_.empty() || !units_.empty()) {
      liveness_.spend(1);
      if (pending_.empty()) {
        uint32_t clause = units_.back();
        units_.pop_back();
        if (clauses_[clause].is_implied) continue;
        std::vector<Formula> operands = formulas_.operands(clauses_[clause].formula);
        auto is_last = [this](Formula operand) { return value_of(operand) != Value::kFalse; };
        auto is_true = [this](Formula operand) { return value_of(operand) == Value::kTrue; };
        auto operand = std::find_if(operands.begin(), operands.end(), is_true);
        if (operand == operands.end()) operand = std::find_if(operands.begin(), operands.end(), is_last);
        imply(clause);
        take(clauses_[clause].formula, *operand);
      }
      Formula next = pending_.back();
      pending_.pop_back();
      if (next == kAlways) continue;
      bool is_possible = next != kNever;
      if (is_possible && formulas_.op(next) == Op::kAnd) {
        for (Formula operand : formulas_.operands(next)) pending_.push_back(operand);
      } else if (is_possible) {
        is_possible = is_literal(next) ? assign(next) : add_clause(next);
      }
      if (is_possible) continue;
      pending_.clear();
      units_.clear();
      return false;
    }
    return true;
  }

  // Satisfies a clause by one operand. For kOne, the other operands must fail then.
  void take(Formula clause, Formula operand) {
    if (formulas_.op(clause) == Op::kOne) {
      for (Formula other : formulas_.operands(clause)) {
        if (other != operand) pending_.push_back(formulas_.negation(other));
      }
    }
    pending_.push_back(operand);
  }

  bool assign(Formula literal) {
    Value known = value_of(literal);
    if (known != Value::kUnknown) return known == Value::kTrue;
    uint32_t number = variable_of(literal);
    bool is_false = is_negated(literal);
    variables_[number].value = is_false ? Value::kFalse : Value::kTrue;
    note(Change::kAssigned, number);
    literals_.push_back(literal);
    bool is_possible = true;
    uint64_t num_uses = 0;
    for (uint32_t use = variables_[number].last_use; use != kNone; use = uses_[use].before) {
      ++num_uses;
      uint32_t clause = uses_[use].clause;
      if (uses_[use].is_negated == is_false) {
        if (formulas_.op(clauses_[clause].formula) == Op::kOr) {
          imply(clause);
        } else {
          units_.push_back(clause);
        }
        continue;
      }
      note(Change::kExcluded, clause);
      uint32_t num_possible = --clauses_[clause].num_possible;
      if (clauses_[clause].is_implied) continue;
      if (num_possible == 0) is_possible = false;
      if (num_possible == 1) units_.push_back(clause);
    }
    liveness_.spend(num_uses);
    return is_possible;
  }

  bool add_clause(Formula formula) {
    uint32_t clause = uint32_t(clauses_.size());
    clauses_.push_back({formula, 0, false});
    note(Change::kAdded, clause);
    std::vector<Formula> operands = formulas_.operands(formula);
    liveness_.spend(operands.size());
    bool has_true = false;
    for (Formula operand : operands) {
      Value value = value_of(operand);
      has_true = has_true || value == Value::kTrue;
      if (value != Value::kFalse) ++clauses_[clause].num_possible;
      if (!is_literal(operand)) continue;
      uint32_t variable = variable_of(operand);
      uses_.push_back({clause, variable, is_negated(operand), variables_[variable].last_use});
      variables_[variable].last_use = uint32_t(uses_.size() - 1);
    }
    if (has_true && formulas_.op(formula) == Op::kOr) {
      clauses_[clause].is_implied = true;
    } else if (has_true || clauses_[clause].num_possible == 1) {
      units_.push_back(clause);
    }
    return clauses_[clause].num_possible > 0;
  }

  // The next clause with at most two possible operands, counted from the last such one, or
  // else the clause with the fewest. None if all clauses are implied: the search is done
  // then.
  std::optional<uint32_t> open_clause() {
    std::optional<uint32_t> shortest;
    for (uint32_t i = 0; i < clauses_.size(); ++i) {
      uint32_t clause = next_looked_at_ + i;
      if (clause >= clauses_.size()) clause -= uint32_t(clauses_.size());
      if (clauses_[clause].is_implied) continue;
      if (!shortest || clauses_[clause].num_possible < clauses_[*shortest].num_possible) shortest = clause;
      if (clauses_[clause].num_possible > 2) continue;
      next_looked_at_ = clause;
      break;
    }
    liveness_.spend(1 + clauses_.size() / 16);
    return shortest;
  }

  void choose(uint32_t clause) {
    imply(clause);  // by any operand that the choice takes
    Choice choice;
    choice.clause = clauses_[clause].formula;
    for (Formula operand : formulas_.operands(choice.clause)) {
      if (value_of(operand) != Value::kFalse) choice.operands.push_back(operand);
    }
    // Phase saving: literals that agree with the last implicants found come first, because
    // similar formulas often have similar implicants.
    std::stable_partition(choice.operands.begin(), choice.operands.end(), [this](Formula operand) {
      auto found = is_literal(operand) ? preferred_.find(atom_of(operand)) : preferred_.end();
      return found != preferred_.end() && found->second != is_negated(operand);
    });
    choice.num_tried = 1;
    choice.num_changes = changes_.size();
    choice.num_literals = literals_.size();
    take(choice.clause, choice.operands[0]);
    choices_.push_back(std::move(choice));
  }

  // Backtracks to the last choice that has an operand to try. False if there is none.
  bool try_next_choice() {
    while (!choices_.empty()) {
      Choice& choice = choices_.back();
      undo(choice.num_changes);
      literals_.resize(choice.num_literals);
      if (choice.num_tried == choice.operands.size()) {
        choices_.pop_back();
        continue;
      }
      // Operands that failed are false in the rest of this choice.
      for (size_t i = 0; i < choice.num_tried; ++i) {
        if (is_literal(choice.operands[i])) pending_.push_back(formulas_.negation(choice.operands[i]));
      }
      take(choice.clause, choice.operands[choice.num_tried++]);
      return true;
    }
    return false;
  }

  void undo(size_t num_changes) {
    liveness_.spend(changes_.size() - num_changes);
    for (; changes_.size() > num_changes; changes_.pop_back()) {
      auto [change, subject] = changes_.back();
      switch (change) {
        case Change::kAssigned:
          variables_[subject].value = Value::kUnknown;
          break;
        case Change::kImplied:
          clauses_[subject].is_implied = false;
          break;
        case Change::kExcluded:
          ++clauses_[subject].num_possible;
          break;
        case Change::kAdded:
          for (; !uses_.empty() && uses_.back().clause == subject; uses_.pop_back()) {
            variables_[uses_.back().variable].last_use = uses_.back().before;
          }
          clauses_.pop_back();
          break;
      }
    }
    if (next_looked_at_ >= clauses_.size()) next_looked_at_ = 0;
  }

  Liveness& liveness_;
  Formulas& formulas_;
  std::unordered_map<Formula, bool>& preferred_;
  Literals literals_;
  std::vector<Formula> pending_;  // must hold
  std::vector<uint32_t> units_;   // clauses with an operand that holds, or with a single possible one
  std::vector<Variable> variables_;
  std::vector<Use> uses_;
  std::vector<Clause> clauses_;
  std::vector<std::pair<Change, uint32_t>> changes_;
  std::vector<Choice> choices_;
  uint32_t next_looked_at_ = 0;
};

std::optional<Liveness::Literals> Liveness::implicant(Formula formula) {
  ImplicantSearch search(*this);
  if (!search.find(formula)) return std::nullopt;
  return search.literals();
}

}  // namespace structout::json
