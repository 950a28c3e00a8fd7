// A pushdown automaton over the bytes of the JSON texts that satisfy a schema. A state is
// named by the formulas on the rest of the present value, as derivatives name the states of
// a regular expression (Brzozowski, 1964); the arrays and objects around it are on a stack.
// States are made when a text first reaches them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "json/automaton/actions.h"
#include "json/automaton/arrays.h"
#include "json/automaton/objects.h"
#include "json/automaton/walk_hints.h"
#include "json/automaton/whitespace.h"
#include "json/uniqueness/value_counts.h"

namespace structout::json {

struct TextForm {
  KeyOrderRule key_order = KeyOrderRule::kAny;
  WhitespaceForm whitespace;
};

// The pushdown automaton of one schema, its states and its tables. A byte has one
// action on the stack; registers beside it (json/automaton/configuration.h) hold the keys and items
// that must differ.
//
// A value has a required formula, which must hold for it, and tracked formulas, on whose
// truth values the object or array around it depends. Example: under `contains` with a
// minimum of 2, an item may match or not, and its truth value tells how many more must
// come.
class SchemaAutomaton {
 public:
  static constexpr std::string_view kLiterals[] = {"null", "false", "true"};

  SchemaAutomaton(const std::string& schema, const SchemaOptions& options, const TextForm& form,
                  const engine::Limits& limits);
  SchemaAutomaton(const SchemaAutomaton&) = delete;
  SchemaAutomaton& operator=(const SchemaAutomaton&) = delete;

  Schema& schema() { return schema_; }
  WalkHints& hints() { return hints_; }
  ValueCounts& counts() { return counts_; }

  State start();

  // JSON pointers to the schemas whose arrays start() has found impossible: they need more
  // different items than there are. For SchemaOptions::impossible_arrays of another
  // automaton.
  const std::vector<std::string>& impossible_arrays() const { return impossible_arrays_; }

  // The action of a byte in a state. A hit is a table lookup; a miss may make states, and
  // fills the table for all adjacent bytes that do the same. So reading may throw
  // SchemaError or engine::LimitError.
  Action action(State state, uint8_t byte) {
    const Action* known = actions_.find(state, byte);
    return known != nullptr ? *known : new_action(state, byte);
  }

  // The state that replaces one that was waiting for a value, given its truth values.
  // kNoState if these leave the object or array unsatisfiable. Below the bottom of the
  // stack `waiting` is kNoState, and the state after it ends the text.
  State resume(State waiting, uint32_t truth_values);

  // The truth values on a number that may end in the state: numbers have no closing byte.
  // None in all other states.
  std::optional<uint32_t> truth_values_at_end(State state);

  // True in the one state after a whole text, with an empty stack. A text that ends with a
  // number needs truth_values_at_end().
  bool is_end(State state) const { return at<TextEnd>(state) != nullptr; }

  // True if some byte of numbers (digits, sign, point, exponent) continues the value on
  // top. In states at which a text may end, this holds inside numbers only.
  bool reads_number(State state);

  RegisterKind register_kind(State state) const { return states_.register_kind(state); }

  // The condition on seen keys under which an action is allowed; always true in declared
  // order.
  Guard guard(State state, uint8_t byte, const Action& action) {
    return allows_any_order() ? guard_in_any_order(state, byte, action) : Guard();
  }
  // `seen_keys`: by index in the object's order of names.
  bool holds(const Guard& guard, const PastKeys& seen_keys) const { return objects_.holds(guard, seen_keys); }

  // With keys in any order: true inside or after a free key if the object cannot be
  // completed without names that have not come.
  bool lacks_names(State state, const PastKeys& seen_keys);

  // The index of the name that the step from one state to the next completes, if keys come
  // in any order, so that the configuration must remember it.
  std::optional<uint32_t> completed_name(State state, State next) const;

  // True if a quote in the state ends a free key.
  bool ends_free_key(State state);

  bool is_key(State state) const { return at<InKey>(state) != nullptr; }
  bool is_in_string(State state) const { return at<InString>(state) != nullptr; }
  bool is_scalar(State state) const {  // inside a number, string or literal
    return is_in_string(state) || at<InNumber>(state) != nullptr || at<InLiteral>(state) != nullptr;
  }
  bool allows_any_order() const { return form_.key_order == KeyOrderRule::kAny; }

  // True if some formula of the schema has uniqueItems.
  bool has_unique_items() const { return schema_.has_unique_items(); }

  // True after whitespace that only the end of the object or array may follow, and no
  // comma, such as a line feed that puts the closing bracket on a line of its own.
  bool must_end(uint32_t spaces) const { return !whitespace_.may_separate(spaces); }

  // For a state that waits for an item: the number of the list of formulas on the item.
  // Items with equal numbers have the same required formula and the same tracked formulas.
  uint32_t item_formulas(State waiting) { return arrays_.item_plan(array_of(waiting)).value_formulas; }

  size_t num_states() const { return states_.size(); }
  size_t memory_bytes() const;

  // -- for its parts ----------------------------------------------------------------

  Objects& objects() { return objects_; }
  Arrays& arrays() { return arrays_; }
  Liveness& liveness() { return liveness_; }
  Planner& planner() { return planner_; }
  ListTable& lists() { return lists_; }

  StateContents contents(State state) const { return states_[state]; }
  // Null if the state is of another kind. Valid until a state is added.
  template <typename Contents>
  const Contents* at(State state) const {
    return states_.find<Contents>(state);
  }
  State add(const StateContents& contents, RegisterKind registers = RegisterKind::kNone);
  State before_value(uint32_t value_formulas);  // without spaces in front of it
  State waiting_item(uint32_t array);
  State waiting_member(uint32_t object, uint32_t key);
  State after_key(uint32_t object, const Key& key);

  // The array whose item the state waits for or has just read.
  uint32_t array_of(State state) const {
    const auto* waiting = at<WaitingForItem>(state);
    return waiting != nullptr ? waiting->array : at<AfterItem>(state)->array;
  }
  // The object of a state before a key or after a member. None for other states.
  std::optional<uint32_t> object_between_members(State state) const;

  // The action that ends an array or object with such formulas on its rest, which is then
  // empty. None if the first of them, the required formula, does not hold.
  std::optional<Action> pop_at_end(const Numbers& formulas);
  std::optional<Action> end_of_object(const Object& object);
  // The state after a value for which no truth value but the required formula matters.
  State resume_with_required(State waiting) { return resume(waiting, truth_values_.number_of({true})); }
  // The truth values of a value whose required formula holds, and of the tracked ones those
  // whose bit is set.
  uint32_t number_of_truth_values(uint32_t tracked, size_t num_tracked) {
    std::vector<bool> truth_values = {true};
    for (size_t i = 0; i < num_tracked; ++i) truth_values.push_back((tracked >> i & 1) != 0);
    return truth_values_.number_of(truth_values);
  }
  // The state after the closing quote of a free key that is in those of the object's sets whose
  // bit is set.
  State after_free_key(const InKey& key, uint32_t sets);

 private:
  Action new_action(State state, uint8_t byte);
  // A range of bytes around the given one that have the same action.
  std::pair<uint8_t, uint8_t> range_of(State state, uint8_t byte);
  Guard guard_in_any_order(State state, uint8_t byte, const Action& action);
  std::optional<uint32_t> index_of_name(const AfterKey& after) const;  // None: it was a free key

  Action read(State state, uint8_t byte) {
    const StateContents contents = states_[state];
    return std::visit([&](const auto& each) { return read(each, states_.register_kind(state), byte); }, contents);
  }
  // Computes the action of a byte in a state with some contents and registers.
  Action read(const TextEnd&, RegisterKind, uint8_t) { return {}; }
  Action read(const WaitingForMember&, RegisterKind, uint8_t) { return {}; }
  Action read(const WaitingForItem&, RegisterKind, uint8_t) { return {}; }
  Action read(const BeforeValue& value, RegisterKind registers, uint8_t byte);
  Action read(const InLiteral& literal, RegisterKind registers, uint8_t byte);
  Action read(const InString& string, RegisterKind registers, uint8_t byte);
  Action read(const InNumber& number, RegisterKind registers, uint8_t byte);
  Action read(const ObjectStart& object, RegisterKind registers, uint8_t byte);
  Action read(const BeforeKey& key, RegisterKind registers, uint8_t byte);
  Action read(const InKey& key, RegisterKind registers, uint8_t byte);
  Action read(const AfterKey& key, RegisterKind registers, uint8_t byte);
  Action read(const AfterMember& member, RegisterKind registers, uint8_t byte);
  Action read(const ArrayStart& array, RegisterKind registers, uint8_t byte);
  Action read(const AfterItem& item, RegisterKind registers, uint8_t byte);
  // The text states after a byte. None if no text continues so, or none that satisfies the
  // required formula.
  std::optional<uint32_t> texts_after(uint32_t texts, uint8_t byte);
  std::optional<uint32_t> truth_values_of_texts(uint32_t texts);  // if these may end here
  // The value formulas of a list, expanded for values of one type.
  Numbers expanded(uint32_t value_formulas, Type type);
  // The state of the whitespace after a member or an item. `spaces`: the whitespace so far;
  // `end`: the action that ends the object or array; `formulas`: the list on its rest.
  uint32_t whitespace_after_value(uint32_t spaces, const std::optional<Action>& end, uint32_t formulas) const;

  Action replace(State state) const { return {Action::kReplace, state}; }

  Schema schema_;
  Formulas& formulas_;
  Texts& texts_;
  Liveness liveness_;
  const TextForm form_;
  const Whitespace whitespace_;

  StateTable states_;
  ActionTable actions_;
  ListTable lists_;  // of formulas and of text states
  ContentsTable<std::vector<bool>> truth_values_;
  std::map<std::pair<State, uint32_t>, State> resumed_;

  Planner planner_;
  Objects objects_;
  Arrays arrays_;
  ValueCounts counts_;
  WalkHints hints_;

  State start_ = kNoState;
  std::vector<std::string> impossible_arrays_;
};

}  // namespace structout::json
