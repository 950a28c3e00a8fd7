// Reads the JSON texts that satisfy a schema, byte by byte. The states of the machine
// are named by what is still asked of the text; values inside each other are on a stack.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "json/actions.h"
#include "json/arrays.h"
#include "json/objects.h"
#include "json/value_counts.h"
#include "json/walk_hints.h"
#include "json/whitespace.h"

namespace structout::json {

struct TextForm {
  KeyOrderRule key_order = KeyOrderRule::kAny;
  WhitespaceForm whitespace;
};

// Beside a formula that must hold for a value, its goal, a state follows formulas whose
// truth the value around it must know: its verdicts.
class Machine {
 public:
  static constexpr std::string_view kLiterals[] = {"null", "false", "true"};

  Machine(const std::string& schema, const SchemaOptions& options, const TextForm& form, const engine::Limits& limits);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Schema& schema() { return schema_; }
  WalkHints& hints() { return hints_; }
  ValueCounts& counts() { return counts_; }

  State start();

  // The schemas that the start has found no array to satisfy, because there are fewer
  // different items than they need: for SchemaOptions::impossible_arrays of another machine.
  const std::vector<std::string>& impossible_arrays() const { return impossible_arrays_; }

  // Reading may throw SchemaError or engine::LimitError: states are made when they are
  // first needed.
  Action action(State state, uint8_t byte) {
    const Action* known = actions_.find(state, byte);
    return known != nullptr ? *known : new_action(state, byte);
  }

  // The state that replaces one that was waiting for a value. kNoState if the verdicts
  // are not possible.
  State resume(State waiting, uint32_t verdicts);

  // Whether a number may end in the state, and its verdicts.
  std::optional<uint32_t> verdicts_at_end(State state);

  // Whether the whole text is complete in this state at the bottom of the stack.
  bool is_end(State state) const { return at<TextEnd>(state) != nullptr; }

  // Whether a byte of numbers goes on with the value on top.
  bool reads_number(State state);

  MemoryKind memory(State state) const { return states_.memory(state); }

  // The condition of an action.
  Guard guard(State state, uint8_t byte, const Action& action) {
    return allows_any_order() ? guard_in_any_order(state, byte, action) : Guard();
  }
  // `names`: positions of names that have come.
  bool holds(const Guard& guard, const PastKeys& names) const { return objects_.holds(guard, names); }

  // Whether a state is inside or after a free key of an object that cannot do without names
  // that have not come.
  bool lacks_names(State state, const PastKeys& names);

  // The position of the name that is complete with the step from one state to the next, if
  // the frame remembers it.
  std::optional<uint32_t> completed_name(State state, State next) const;

  // Whether a free key ends in the state, when its quote comes.
  bool ends_free_key(State state);

  bool is_key(State state) const { return at<InKey>(state) != nullptr; }
  bool is_in_string(State state) const { return at<InString>(state) != nullptr; }
  bool is_scalar(State state) const {  // inside a number, string or literal
    return is_in_string(state) || at<InNumber>(state) != nullptr || at<InLiteral>(state) != nullptr;
  }
  bool allows_any_order() const { return form_.key_order == KeyOrderRule::kAny; }

  // Whether the schema speaks of items that differ.
  bool has_unique_items() const { return schema_.has_unique_items(); }

  // Whether whitespace has come after a value that only the end of the object or the array
  // may follow.
  bool must_end(uint32_t spaces) const { return !whitespace_.may_separate(spaces); }

  // For a state that waits for an item: a number of what is asked of the item.
  uint32_t item_children(State waiting) { return arrays_.item_plan(array_of(waiting)).children; }

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
  State add(const StateContents& contents, MemoryKind memory = MemoryKind::kNone);
  State before_value(uint32_t children);  // without spaces in front of it
  State waiting_item(uint32_t array);
  State waiting_member(uint32_t object, uint32_t key);

  // The array whose item the state waits for or has just read.
  uint32_t array_of(State state) const {
    const auto* waiting = at<WaitingForItem>(state);
    return waiting != nullptr ? waiting->array : at<AfterItem>(state)->array;
  }
  // The object of a state before a key or after a member.
  std::optional<uint32_t> object_between_members(State state) const;

  // The end of an array or object of which so much is left to ask. None if it may not end.
  std::optional<Action> pop_at_end(const Numbers& formulas);
  std::optional<Action> end_of_object(const Object& object);
  // The state after a value of which no verdict but the goal matters.
  State resume_with_goal(State waiting) { return resume(waiting, verdicts_.number_of({true})); }

 private:
  Action new_action(State state, uint8_t byte);
  // Bytes around the given one that do the same.
  std::pair<uint8_t, uint8_t> range_of(State state, uint8_t byte);
  Guard guard_in_any_order(State state, uint8_t byte, const Action& action);
  std::optional<uint32_t> position_of_name(const AfterKey& after) const;  // None: it was a free key

  Action read(State state, uint8_t byte) {
    const StateContents contents = states_[state];
    return std::visit([&](const auto& each) { return read(each, states_.memory(state), byte); }, contents);
  }
  // What a byte does in a state with some contents and a memory.
  Action read(const TextEnd&, MemoryKind, uint8_t) { return {}; }
  Action read(const WaitingForMember&, MemoryKind, uint8_t) { return {}; }
  Action read(const WaitingForItem&, MemoryKind, uint8_t) { return {}; }
  Action read(const BeforeValue& value, MemoryKind memory, uint8_t byte);
  Action read(const InLiteral& literal, MemoryKind memory, uint8_t byte);
  Action read(const InString& string, MemoryKind memory, uint8_t byte);
  Action read(const InNumber& number, MemoryKind memory, uint8_t byte);
  Action read(const ObjectStart& object, MemoryKind memory, uint8_t byte);
  Action read(const BeforeKey& key, MemoryKind memory, uint8_t byte);
  Action read(const InKey& key, MemoryKind memory, uint8_t byte);
  Action read(const AfterKey& key, MemoryKind memory, uint8_t byte);
  Action read(const AfterMember& member, MemoryKind memory, uint8_t byte);
  Action read(const ArrayStart& array, MemoryKind memory, uint8_t byte);
  Action read(const AfterItem& item, MemoryKind memory, uint8_t byte);
  // The texts after a byte. Nothing if their goal cannot be reached any more.
  std::optional<uint32_t> texts_after(uint32_t texts, uint8_t byte);
  std::optional<uint32_t> verdicts_of_texts(uint32_t texts);  // if these may end here
  Numbers expanded(uint32_t children, Type type);
  // The state of the whitespace that may follow a member or an item. `spaces`: what has
  // come; `end`: of the object or the array; `formulas`: the list of what it asks.
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
  ContentsTable<std::vector<bool>> verdicts_;
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
