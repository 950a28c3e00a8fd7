// Reads the JSON texts that satisfy a schema, byte by byte. The states of the machine
// are named by what is still asked of the text; values inside each other are on a stack.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/state_numbers.h"
#include "json/liveness.h"
#include "json/states.h"
#include "json/used_values.h"
#include "json/whitespace.h"

namespace structout::json {

enum class KeyOrderRule : uint8_t {
  kAny,       // the named keys in any order, each at most once
  kDeclared,  // the named keys in the order of their declaration, then the others
};

struct TextForm {
  KeyOrderRule key_order = KeyOrderRule::kAny;
  WhitespaceForm whitespace;
};

// What a byte does to the top of the stack.
struct Action {
  enum Kind : uint8_t {
    kFail,
    kReplace,    // the top by `state`
    kPush,       // the top is replaced by `below`, with `state` above it
    kPop,        // the value is complete with verdicts number `state`
    kPopBefore,  // the same, and the byte is still to be read
  };
  Kind kind = kFail;
  State state = kNoState;
  State below = kNoState;
  bool operator==(const Action& other) const {
    return kind == other.kind && state == other.state && below == other.below;
  }
};

// Beside a formula that must hold for a value, its goal, a state follows formulas whose
// truth the value around it must know: its verdicts.
class Machine {
 public:
  Machine(const std::string& schema, const SchemaOptions& options, const TextForm& form, const engine::Limits& limits);

  Schema& schema() { return schema_; }

  State start();

  // The schemas that the start has found no array to satisfy, because there are fewer
  // different items than they need: for SchemaOptions::impossible_arrays of another machine.
  const std::vector<std::string>& impossible_arrays() const { return impossible_arrays_; }

  // Reading may throw SchemaError or engine::LimitError: states are made when they are
  // first needed.
  Action action(State state, uint8_t byte) {
    const std::unique_ptr<ActionRow>& row = rows_[state];
    uint8_t number = row == nullptr ? kUnknownAction : row->numbers[byte];
    return number == kUnknownAction ? new_action(state, byte) : row->actions[number];
  }

  // The state that replaces one that was waiting for a value. kNoState if the verdicts
  // are not possible.
  State resume(State waiting, uint32_t verdicts);

  // Whether a number may end in the state, and its verdicts.
  std::optional<uint32_t> verdicts_at_end(State state);

  // Whether the whole text is complete in this state at the bottom of the stack.
  bool is_end(State state) const { return at<TextEnd>(state) != nullptr; }

  MemoryKind memory(State state) const { return states_.memory(state); }

  // A condition on the names that have come. Where they come in any order, the frame of the
  // object remembers them, and actions are those of an object that has no keys yet.
  struct Guard {
    enum Kind : uint8_t {
      kNone,   // it always holds
      kKeys,   // one of the names [begin, end), by spelling, may still come, or a free key
      kClose,  // no name is missing
    };
    Kind kind = kNone;
    uint32_t object = 0;
    uint32_t begin = 0, end = 0;
    bool allows_free = false;
    bool operator==(const Guard& other) const {
      return kind == other.kind && object == other.object && begin == other.begin && end == other.end &&
             allows_free == other.allows_free;
    }
  };
  // The condition of an action. `names`: positions of names that have come.
  Guard guard(State state, uint8_t byte, const Action& action) {
    return allows_any_order() ? guard_in_any_order(state, byte, action) : Guard();
  }
  bool holds(const Guard& guard, const PastKeys& names);

  // The same as sets of positions of names: those that are required, and those of which one
  // must still be able to come. `max_keys`: how many keys may follow.
  struct GuardNames {
    PastKeys required, candidates;
    std::optional<uint32_t> max_keys;
  };
  GuardNames names_of(const Guard& guard) const;

  // Whether a state is inside or after a free key of an object that cannot do without names
  // that have not come.
  bool lacks_names(State state, const PastKeys& names);

  // The position of the name that is complete with the step from one state to the next, if
  // the frame remembers it.
  std::optional<uint32_t> completed_name(State state, State next) const {
    bool may_be_complete = allows_any_order() && at<InKey>(state) != nullptr && at<AfterKey>(next) != nullptr;
    return may_be_complete ? position_of_name(*at<AfterKey>(next)) : std::nullopt;
  }

  // Inside a string or a free key: how many bytes may follow of any characters that are
  // written as themselves. 0 if the schema asks more of them.
  uint32_t num_plain_bytes(State state);

  // Between two characters of a string or a free key: the classes after all of whose
  // characters the state is the same. See masks/character_classes.h.
  uint64_t repeated_classes(State state);

  // Whether the state is between two characters of a string or free key of which nothing
  // more is asked.
  bool is_free_text(State state) const;

  // For a state inside a key that may still become a named one: the state that follows if
  // it does not, if is_free_text() holds for it.
  std::optional<State> state_without_name(State state);

  // The bytes with which names go on.
  std::vector<uint8_t> name_bytes(State state) const;

  // A state that allows the same texts as the next part of a string of `max_length`
  // bytes, without limits of the length that are further away.
  State without_far_limits(State state, uint32_t max_length);

  struct LengthLimit {
    State without;         // the state without the limit
    uint32_t num_free;     // characters after which it still makes no difference
    uint32_t num_at_most;  // characters that may follow
  };
  // The limit of the length of a string, between two characters.
  std::optional<LengthLimit> length_limit(State state);

  // Whether a free key ends in the state, when its quote comes.
  bool ends_free_key(State state);

  bool is_key(State state) const;
  bool is_in_string(State state) const { return at<InString>(state) != nullptr; }
  bool is_scalar(State state) const {  // inside a number, string or literal
    return is_in_string(state) || at<InNumber>(state) != nullptr || at<InLiteral>(state) != nullptr;
  }
  bool allows_any_order() const { return form_.key_order == KeyOrderRule::kAny; }

  // Whether the schema speaks of items that differ.
  bool has_unique_items() const { return has_unique_items_; }

  // How many different values there are.
  static constexpr uint32_t kManyValues = Texts::kManyTexts;
  struct NumValues {
    uint32_t least = 1;     // kManyValues: so many or more
    bool is_exact = false;  // no more than these; then no object that is open has free keys
    bool are_many() const { return least == kManyValues; }
  };
  // How many values the innermost array, object or scalar can still become from a state; or,
  // from a state that waits for a value, once that value is complete. `names`: as in holds().
  // `num_items`: how many items an array whose items differ has then, or kUnknownItems.
  static constexpr size_t kUnknownItems = SIZE_MAX;
  NumValues num_values(State state, const PastKeys& names = {}, size_t num_items = kUnknownItems);
  NumValues num_values_behind(State waiting, const PastKeys& names, size_t num_items = kUnknownItems);
  bool has_many_values(State state);  // whichever names have come

  // For a state that waits for an item: a number of what is asked of the item.
  uint32_t item_children(State waiting) { return item_plan(array_of(waiting)).children; }

  // For a state before or inside a key: whether one may follow that is not used. `begin`:
  // where the used ones are that begin as this one has begun.
  bool has_unused_key(State state, const TextSet& used, TextSet::Cursor begin, const PastKeys& names);
  // The same for an item that is a scalar.
  bool has_unused_scalar(State state, TextSet::Cursor begin);
  // For a state before or inside a key: whether free keys may be used up.
  bool may_lack_keys(State state);

  // For states of an array: whether it may depend on the values of earlier items whether
  // it can be completed, and whether it can.
  bool is_tight(State state);
  // For a tight state that waits for an item: whether it matters what else the item
  // satisfies, even if it is none of the few values; and whether the item may become one of
  // these. With one `contains` alone it does not matter: what was used of it has counted.
  bool depends_on_verdicts(State waiting);
  bool may_be_scarce(State waiting, const std::string& text);
  bool stays_live(State state, const TextSet& used);

  size_t num_states() const { return states_.size(); }
  size_t memory_bytes() const;

 private:
  using Numbers = std::vector<uint32_t>;
  // Numbers contents. Equal ones get one number.
  template <typename Contents>
  class Table {
   public:
    uint32_t number_of(const Contents& contents) {
      uint64_t hash = contents.size();
      for (uint32_t value : contents) hash = engine::mix(hash, value);
      auto [number, is_new] = numbers_.find_or_add(hash, [&](uint32_t other) { return contents_[other] == contents; });
      if (is_new) contents_.push_back(contents);
      return number;
    }
    const Contents& operator[](uint32_t number) const { return contents_[number]; }

   private:
    engine::StateNumbers numbers_;
    std::deque<Contents> contents_;
  };

  static constexpr uint32_t kUnknown = UINT32_MAX;

  // A plan for the value of a key or for an item: its goal and what is tracked.
  struct Plan {
    bool is_live = false;
    uint32_t children = 0;                          // the goal, then what is tracked
    std::vector<std::pair<Formula, bool>> decided;  // children whose truth follows from the goal
    std::vector<Formula> tracked;
    uint32_t values = kUnknown;  // the set of constants of which the verdicts tell one, in binary
  };

  // A formula on an object in two parts.
  struct Parts {
    // Literals that stay as they are whichever keys come: what they ask of a key, they ask
    // when it comes, and which keys are missing is known from those that have come.
    Formula lasting = kAlways;
    Formula rest;          // becomes another formula with the keys that it mentions
    bool is_kept = false;  // false: keys may change how all of it can go on, so nothing lasts
  };

  // The lasting part of objects, by the key that it is about.
  struct Shape {
    Formula lasting;
    uint32_t order;
    std::unordered_map<uint32_t, std::vector<Formula>> for_name;  // children
    std::vector<Formula> for_keys;                                // atoms
    std::vector<bool> is_required;                                // by position in the order
    std::vector<uint32_t> required;                               // positions, increasing
    std::unordered_map<uint32_t, Plan> plans;                     // by key
  };

  // An object after some keys.
  struct Object {
    uint32_t shape;
    uint32_t formulas;                              // what is asked beside the shape
    uint32_t past;                                  // keys that cannot follow any more, if the state knows them
    bool is_kept;                                   // the goal is kept, and the other formulas are known to hold or not
    uint32_t next;                                  // the first position that is not past
    uint32_t max_keys;                              // how many may follow, if the formula is kept
    bool is_prepared = false;                       // what follows is known
    std::vector<uint32_t> num_allowed_before = {};  // of the order's spellings, how many are allowed before each
    uint32_t free = 0;                              // text states of free keys: the goal, then each set
    bool allows_free = false;
    Numbers sets = {};  // formulas on keys that tell free keys apart
  };

  // A free key, and the formula of the keys for which it stands.
  struct FreeKey {
    uint32_t key;
    Formula description;
  };

  struct Order {
    KeyOrder order;
    std::vector<uint32_t> by_spelling;  // positions, by increasing spelling
  };

  // The actions of a state, by byte. No text has some of the bytes, so their number fits.
  struct ActionRow {
    uint8_t numbers[256] = {};
    std::vector<Action> actions = {{}};  // number 0: unknown
  };

  static constexpr uint8_t kUnknownAction = 0;
  static constexpr uint64_t kUnknownClasses = UINT64_MAX;
  static constexpr std::string_view kLiterals[] = {"null", "false", "true"};

  bool has_constant_texts(uint32_t texts) const;

  Action new_action(State state, uint8_t byte);
  // Bytes around the given one that do the same.
  std::pair<uint8_t, uint8_t> range_of(State state, uint8_t byte);
  State add(const StateContents& contents, MemoryKind memory = MemoryKind::kNone);
  template <typename Contents>
  const Contents* at(State state) const {
    return states_.find<Contents>(state);
  }
  // The array whose item the state waits for or has just read.
  uint32_t array_of(State state) const {
    const auto* waiting = at<WaitingForItem>(state);
    return waiting != nullptr ? waiting->array : at<AfterItem>(state)->array;
  }
  Guard guard_in_any_order(State state, uint8_t byte, const Action& action);
  std::optional<uint32_t> position_of_name(const AfterKey& after) const;  // None: it was a free key
  // The object of a state before a key or after a member.
  std::optional<uint32_t> object_between_members(State state) const;
  // The texts of a string, or of a key that can only be a free one.
  std::optional<uint32_t> texts_of_characters(State state) const;

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
  State resume(const WaitingForMember& waiting, const std::vector<bool>& verdicts);
  State resume(const WaitingForItem& waiting, const std::vector<bool>& verdicts);

  Action replace(State state) const { return {Action::kReplace, state}; }
  Action pop(const std::vector<bool>& verdicts) { return {Action::kPop, verdicts_.number_of(verdicts)}; }

  uint32_t order_of(uint32_t children, const Numbers& objects);
  const Order& order(const Object& object) const { return orders_[shapes_[object.shape].order]; }
  const Parts& parts_of(Formula object);
  uint32_t shape_of(Formula lasting, uint32_t order);
  uint32_t object_of(uint32_t shape, Numbers formulas, PastKeys past);
  // The object whose past keys are those before a position.
  uint32_t object_at(uint32_t object, uint32_t position);
  Object& prepared(uint32_t object);
  const std::vector<FreeKey>& free_keys(uint32_t order, const Numbers& sets);
  uint32_t number_of_key(const Key& key);
  MemoryKind memory_of(const Object& object) const;
  MemoryKind memory_at_start() const { return allows_any_order() ? MemoryKind::kKeys : MemoryKind::kNone; }
  // Whether the frame of an object, not its state, tells which names have come.
  bool is_guarded(const Object& object) const { return object.is_kept && form_.key_order == KeyOrderRule::kAny; }
  // None if the key cannot come now.
  std::optional<PastKeys> past_after(const Object& object, const Key& key) const;
  // Whether a key makes another formula of what is asked beside the shape, apart from the
  // number of keys.
  bool changes_rest(const Object& object, const Key& key);
  Formula with_shape(const Object& object, Formula rest, const Key* key = nullptr);
  bool may_come(uint32_t object, uint32_t key);
  bool may_be_named(const InKey& key, const PastKeys& names);
  std::optional<uint32_t> object_after(uint32_t object, uint32_t key, const std::vector<bool>& verdicts);
  std::optional<Action> end_of_object(const Object& object);
  const Plan& shape_plan(uint32_t shape, uint32_t key);
  const Plan& key_plan(uint32_t object, uint32_t key);
  const Plan& item_plan(uint32_t array);
  // The formula on what follows a key or an item, whose value satisfies the children that
  // `truth` tells, if it knows.
  using Truth = std::function<std::optional<bool>(Formula)>;
  Formula truth_formula(Formula child, const Truth& truth);
  // Whether an object or array must be one of some constants, and nothing more is asked.
  bool is_among(const Numbers& formulas) const;
  // A key, or an item with its index as the key, of such a value.
  Plan among_plan(const Numbers& formulas, uint32_t key, const std::function<bool(uint32_t)>& is_past);
  Numbers after_among(const Numbers& formulas, uint32_t key, const std::function<bool(uint32_t)>& is_past,
                      const Plan& plan, const std::vector<bool>& verdicts);
  Formula after_key(Formula object, const Key& key, const KeyOrder& order, const PastKeys& past, const Truth& truth);
  Formula after_item(Formula array, const Truth& truth);
  Truth known_truth(const Plan& plan, const std::vector<bool>& verdicts) const;
  // What planning needs to know of the formulas around a value.
  struct Context {
    std::function<Formula(Formula, const Truth&)> residual;
    std::function<bool(Formula)> is_live;
  };
  class PlanMaker;
  Plan make_plan(const Numbers& formulas, const Context& context);
  bool are_items_unique(uint32_t array);
  uint32_t min_items(uint32_t array);
  uint32_t max_items(uint32_t array);
  // Whether there are as many different items as an array needs. Throws where it is not known.
  bool has_enough_items(uint32_t array);
  NumValues counted_values(State state, const PastKeys& names, size_t num_items);
  NumValues num_arrays(uint32_t array, size_t num_items);
  NumValues num_values_of(uint32_t children);
  NumValues num_objects(uint32_t object, const PastKeys& names);
  NumValues num_constants(Formula among);
  NumValues num_objects_behind_key(const InKey& key, const PastKeys& names);
  NumValues num_members(uint32_t object, uint32_t key, const PastKeys& names);
  bool is_plain_array(uint32_t array);
  struct ItemGoal {
    uint32_t begin;  // the first item of which it is asked
    Formula goal;
  };
  std::vector<ItemGoal> item_goals(uint32_t array);
  // The formulas on items that few values satisfy, and that some item may satisfy.
  std::vector<Formula> few_children(uint32_t array);
  State waiting_item(uint32_t array);
  State waiting_member(uint32_t object, uint32_t key);
  State value_state(uint32_t children);  // before a value, without spaces in front of it
  std::optional<Action> pop_at_end(const Numbers& formulas);
  Numbers expanded(uint32_t children, Type type);

  Schema schema_;
  Formulas& formulas_;
  Texts& texts_;
  Liveness liveness_;
  const TextForm form_;
  const Whitespace whitespace_;

  StateTable states_;
  std::map<State, std::optional<State>> states_without_name_;
  std::vector<uint32_t> num_plain_bytes_;   // kUnknown where it is not computed yet
  std::vector<uint64_t> repeated_classes_;  // kUnknownClasses where they are not computed yet
  std::vector<std::unique_ptr<ActionRow>> rows_;
  size_t row_bytes_ = 0;

  Table<Numbers> lists_;  // of formulas and of text states
  Table<std::vector<bool>> verdicts_;
  Table<PastKeys> pasts_;
  std::unordered_map<Formula, Parts> parts_;
  std::map<std::pair<Formula, uint32_t>, uint32_t> shape_numbers_;
  std::deque<Shape> shapes_;
  std::map<std::array<uint32_t, 3>, uint32_t> object_numbers_;
  std::deque<Object> objects_;
  std::map<std::pair<uint32_t, Numbers>, std::vector<FreeKey>> free_keys_;  // by order and sets
  std::map<uint32_t, uint32_t> order_numbers_;                              // by children
  std::deque<Order> orders_;
  std::map<std::pair<uint32_t, Numbers>, uint32_t> key_numbers_;
  std::deque<Key> keys_;
  std::map<std::pair<uint32_t, uint32_t>, Plan> key_plans_;
  std::map<uint32_t, Plan> item_plans_;
  State start_ = kNoState;
  bool has_unique_items_ = false;
  std::vector<std::string> impossible_arrays_;
  std::unordered_map<State, NumValues> num_values_;
  std::unordered_set<State> being_counted_;
  size_t count_depth_ = 0;
  std::unordered_map<State, bool> has_many_values_;
  std::unordered_map<uint32_t, bool> tight_arrays_;
  std::map<std::pair<State, uint32_t>, State> resumed_;
};

}  // namespace structout::json
