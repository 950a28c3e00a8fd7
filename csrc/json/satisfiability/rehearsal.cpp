#include "json/satisfiability/rehearsal.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

namespace structout::json {

namespace {

constexpr size_t kFewConditions = 8;     // on one value: so few meet no limit
constexpr uint64_t kMaxSteps = 100'000;  // of the budget: some 10 ms
constexpr uint64_t kMaxStepsForTruthValues = 10'000;
constexpr size_t kMaxTries = 3;  // of truth values on one value, that tell what follows it

enum class Part { kValue, kObject, kArray };

// A value with a list of formulas, or an object or array between two of its parts.
struct Scene {
  Part part;
  uint32_t number;   // of the list, of the object or of the array
  Formula required;  // of the value, for its pointer in the schema

  bool operator<(const Scene& other) const { return std::pair(part, number) < std::pair(other.part, other.number); }
};

class Rehearsal {
 public:
  explicit Rehearsal(SchemaAutomaton& automaton) : automaton_(automaton), schema_(automaton.schema()) {}

  void run() {
    Formula root = schema_.root();
    add({Part::kValue, automaton_.lists().number_of({root}), root});
    const uint64_t end = schema_.budget().total() + kMaxSteps;
    while (!scenes_.empty() && schema_.budget().total() < end) {
      Scene scene = scenes_.front();
      scenes_.pop_front();
      schema_.budget().restart();
      try {
        play(scene);
      } catch (engine::LimitError& error) {
        if (error.pointer.empty()) error.pointer = schema_.pointer_of(scene.required);
        throw;
      }
    }
    schema_.budget().restart();
  }

 private:
  void add(const Scene& scene) {
    if (known_.insert(scene).second) scenes_.push_back(scene);
  }
  void add_value(const Plan& plan) {
    if (plan.is_live) add({Part::kValue, plan.value_formulas, automaton_.lists()[plan.value_formulas][0]});
  }

  void play(const Scene& scene) {
    switch (scene.part) {
      case Part::kValue:
        return play_value(scene);
      case Part::kObject:
        return play_object(scene);
      case Part::kArray:
        return play_array(scene);
    }
  }

  void play_value(const Scene& scene) {
    State value = automaton_.before_value(scene.number);
    for (char byte : {'"', '0'}) automaton_.action(value, uint8_t(byte));
    Action object = automaton_.action(value, '{'), array = automaton_.action(value, '[');
    if (object.kind == Action::kReplace) {
      add({Part::kObject, automaton_.at<ObjectStart>(object.state)->object, scene.required});
    }
    if (array.kind == Action::kReplace)
      add({Part::kArray, automaton_.at<ArrayStart>(array.state)->array, scene.required});
  }

  void play_object(const Scene& scene) {
    Objects& objects = automaton_.objects();
    for (uint32_t key : objects.possible_keys(scene.number)) {
      const Plan& plan = objects.plan(scene.number, key);
      add_value(plan);
      if (plan.tracked.empty()) continue;  // the object after it has no new conditions
      for (const std::vector<bool>& truth_values : some_truth_values(plan)) {
        std::optional<uint32_t> after = objects.after(scene.number, key, truth_values);
        if (after) add({Part::kObject, *after, scene.required});
      }
    }
  }

  void play_array(const Scene& scene) {
    Arrays& arrays = automaton_.arrays();
    const Plan& plan = arrays.item_plan(scene.number);
    add_value(plan);
    if (!plan.is_live) return;
    for (const std::vector<bool>& truth_values : some_truth_values(plan)) {
      std::optional<uint32_t> after = arrays.after(scene.number, truth_values);
      if (after) add({Part::kArray, *after, scene.required});
    }
  }

  // Truth values that some values have, as far as little work finds them: beside the
  // required formula as few as possible hold, and one of the first that are tracked.
  std::vector<std::vector<bool>> some_truth_values(const Plan& plan) {
    std::vector<std::vector<bool>> all;
    struct Restore {
      engine::Budget& budget;
      ~Restore() { budget.draw_from(engine::StepBudget::present()); }
    } restore{schema_.budget()};  // is destroyed after the step's budget
    engine::StepBudget step_budget(kMaxStepsForTruthValues);
    schema_.budget().draw_from(&step_budget);
    try {
      for (size_t first = 0; first <= std::min(plan.tracked.size(), kMaxTries); ++first) {
        std::vector<bool> truth_values = truth_values_with(plan, first);
        bool is_new = !truth_values.empty() && std::find(all.begin(), all.end(), truth_values) == all.end();
        if (is_new) all.push_back(std::move(truth_values));
      }
    } catch (const engine::StepBudgetExceeded&) {
    }
    return all;
  }
  // Empty if the required formula and the child before `first` exclude each other.
  std::vector<bool> truth_values_with(const Plan& plan, size_t first) {
    std::vector<Formula> known = {automaton_.lists()[plan.value_formulas][0]};
    if (first > 0) known.push_back(plan.tracked[first - 1]);
    if (!is_satisfiable(known)) return {};
    std::vector<bool> truth_values = {true};
    for (Formula child : plan.tracked) {
      known.push_back(schema_.formulas().negation(child));
      truth_values.push_back(!is_satisfiable(known));
      if (truth_values.back()) known.back() = child;
    }
    return truth_values;
  }
  bool is_satisfiable(const std::vector<Formula>& all) {
    return automaton_.liveness().is_satisfiable(schema_.formulas().conjunction(all));
  }

  SchemaAutomaton& automaton_;
  Schema& schema_;
  std::deque<Scene> scenes_;
  std::set<Scene> known_;
};

// The number of conditions in a formula: literals on all keys of a set or on a number of
// items, and atoms within alternatives.
size_t num_conditions(Formulas& formulas, Formula formula) {
  size_t count = 0;
  for (Formula part : formulas.conjuncts(formula)) {
    Op op = formulas.op(part);
    if (op == Op::kNot) op = formulas.op(formulas[part].a);
    if (op == Op::kForKeys || op == Op::kHas) ++count;
    if (has_operands(op)) count += formulas.atoms(part).size();
  }
  return count;
}

}  // namespace

void rehearse(SchemaAutomaton& automaton) {
  Schema& schema = automaton.schema();
  bool has_many_conditions = false;
  for (Formula child : schema.child_formulas()) {
    for (Type type : {Type::kObject, Type::kArray}) {
      size_t count = num_conditions(schema.formulas(), schema.expand(child, type));
      has_many_conditions = has_many_conditions || count > kFewConditions;
    }
  }
  if (has_many_conditions) Rehearsal(automaton).run();
}

}  // namespace structout::json
