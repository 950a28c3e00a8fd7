// Objects after some keys, and the keys that may follow.
//
// A schema of 80 optional keys has 2^80 sets of keys that may have come. A state does not
// name such a set where it can be avoided: the literals on each key stay in the shape of
// the object, whether or not the key has come. In declared order the state knows the
// index of the last key; in any order the configuration's registers of the object have the
// keys that were seen, and guards consult them. A state knows the set only where the rest
// of the formula weighs all keys against each other (see Objects::parts_of).
//
// Where branches contradict one another in the order of their keys, the required formula is
// a disjunction with an operand for each order that is open: an atom kFollows, which has the
// order and a position in it, and the formula of the objects that follow it. An operand is
// dropped once a key comes too late for its order, or once no object satisfies it. The
// formula of the last order becomes the required one, without the atom.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json/automaton/plans.h"
#include "json/automaton/states.h"

namespace structout::json {

enum class KeyOrderRule : uint8_t {
  kAny,       // the named keys in any order, each at most once
  kDeclared,  // the named keys in the order of their declaration, then the others
};

// A condition on the keys that were seen, where they come in any order. The automaton's
// actions are then those of an object without keys, and an action is allowed if its guard
// holds for the seen keys in the configuration's registers of the object.
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

// An object after some keys.
struct Object {
  uint32_t shape;
  uint32_t formulas;         // a list: the required formula beside the shape, then the tracked ones
  uint32_t past;             // keys that cannot follow any more, if the state knows them
  bool is_kept;              // the required formula is split (see Parts), and the tracked formulas are decided
  bool has_orders;           // the required formula has several orders
  uint32_t next;             // the first name, by index, that is not past
  uint32_t max_keys;         // the most that may follow, if is_kept
  bool is_prepared = false;  // the members below are computed
  std::vector<uint32_t> num_allowed_before = {};  // of the order's spellings, how many are allowed before each
  uint32_t free = 0;                              // text states of free keys: the required formula, then each set
  bool allows_free = false;
  Numbers sets = {};  // formulas on keys that tell free keys apart

  bool allows_spelling(uint32_t index) const { return num_allowed_before[index + 1] > num_allowed_before[index]; }
  bool allows_names() const { return num_allowed_before.back() > 0; }
  uint32_t num_names() const { return uint32_t(num_allowed_before.size() - 1); }
};

// Numbers the objects and keys of an automaton. prepared() plans every key of an object
// once, when a text first comes to it; references to objects stay valid.
class Objects {
 public:
  struct Order {
    KeyOrder order;
    std::vector<uint32_t> by_spelling;  // indices of names, by increasing spelling
    uint32_t first = 0;                 // the number of the first order of the same objects
  };

  Objects(Schema& schema, Liveness& liveness, Planner& planner, ListTable& lists, KeyOrderRule rule)
      : schema_(schema),
        formulas_(schema.formulas()),
        texts_(schema.texts()),
        liveness_(liveness),
        planner_(planner),
        lists_(lists),
        rule_(rule) {}

  size_t size() const { return objects_.size(); }
  const Object& operator[](uint32_t number) const { return objects_[number]; }
  const Object& prepared(uint32_t number);
  const Order& order(const Object& object) const { return orders_[shapes_[object.shape].order]; }
  const Key& key(uint32_t number) const { return keys_[number]; }
  uint32_t number_of_key(const Key& key);

  // The object before its first key, for a value with such formulas. None if it cannot be
  // completed.
  std::optional<uint32_t> start(uint32_t value_formulas, Numbers formulas);

  // The object after a key whose value has some truth values. None if it cannot be
  // completed.
  std::optional<uint32_t> after(uint32_t object, uint32_t key, const std::vector<bool>& truth_values);

  // In declared order: the object once the names before an index cannot follow any more,
  // one object for all that differ in these names only. The object itself if its rest
  // mentions such a name, or if it is guarded or not kept.
  uint32_t at_position(uint32_t object, uint32_t position);

  // Keys that may come next: the names, and the free keys in no set or in a single one. For
  // a rehearsal, which tries examples.
  Numbers possible_keys(uint32_t object);

  // The obligations on the value of a key.
  const Plan& plan(uint32_t object, uint32_t key);
  // The obligations in the shape of the object, which hold whichever other keys come.
  const Plan& lasting_plan(const Object& object, uint32_t key) { return shape_plan(object.shape, key); }

  // True if the configuration's registers of the object, not the state, have its seen keys.
  bool is_guarded(const Object& object) const { return object.is_kept && rule_ == KeyOrderRule::kAny; }
  bool is_required(const Object& object, uint32_t position) const {
    return shapes_[object.shape].is_required[position];
  }
  // True if the state knows of a required name that has not come.
  bool lacks_required(const Object& object) const;
  // True if the object cannot be completed without further names than the seen ones.
  bool lacks_names(uint32_t object, const PastKeys& seen_keys);
  // True if a guard of a prepared object holds.
  bool holds(const Guard& guard, const PastKeys& seen_keys) const;

  // The kind of registers that goes with the states of an object, but for those inside a
  // free key.
  RegisterKind register_kind_of(const Object& object) const {
    return object.allows_free ? RegisterKind::kKeys : register_kind_at_start();
  }
  RegisterKind register_kind_at_start() const {
    return rule_ == KeyOrderRule::kAny ? RegisterKind::kKeys : RegisterKind::kNone;
  }

 private:
  // A formula on an object, split in two parts.
  struct Parts {
    // Literals that stay the same whichever keys come: properties that hold for the value
    // of a key when it comes (kForName, kForKeys), and required names, of which those that
    // have not come are missing.
    Formula lasting = kAlways;
    Formula rest;          // becomes another formula with the keys that it mentions
    bool is_kept = false;  // false: keys may change how all of it can continue, so nothing lasts
  };

  // The lasting part of objects, by the key that it is about.
  struct Shape {
    Formula lasting;
    uint32_t order;
    std::unordered_map<uint32_t, std::vector<Formula>> for_name;  // child formulas
    std::vector<Formula> for_keys;                                // atoms
    std::vector<bool> is_required;                                // by index in the order
    std::vector<uint32_t> required;                               // indices in the order, increasing
    std::unordered_map<uint32_t, Plan> plans;                     // by key
    std::optional<Formula> free_texts = std::nullopt;             // if they are known
  };

  // An order that an object may still follow: the first name that may come next, and the
  // formula on the keys from there on.
  struct OpenOrder {
    uint32_t order, position;
    Formula formula;
  };

  // A free key, and the formula of the keys for which it stands.
  struct FreeKey {
    uint32_t key;
    Formula description;
  };

  // The orders of objects before their first key.
  const std::vector<OpenOrder>& orders_of(uint32_t value_formulas, const Numbers& objects);
  // The open orders in a required formula that has several, and the formula of open orders.
  std::vector<OpenOrder> open_orders(Formula required);
  Formula required_formula(const std::vector<OpenOrder>& open);
  PastKeys past_of(const OpenOrder& open) const;
  bool is_live(const OpenOrder& open);
  std::vector<OpenOrder> after_key_in_orders(Formula required, const Key& key, const Truth& truth);
  // The object that may follow these orders; formulas[0] is not used. None if it cannot be
  // completed.
  std::optional<uint32_t> object_of_orders(std::vector<OpenOrder> open, Numbers formulas);
  Numbers few_free_keys(const Numbers& objects, const KeyOrder& named);
  const Parts& parts_of(Formula object);
  uint32_t shape_of(Formula lasting, uint32_t order);
  uint32_t object_of(uint32_t shape, Numbers formulas, PastKeys past, bool has_orders = false);
  const std::vector<FreeKey>& free_keys(uint32_t order, const Numbers& sets);
  // None if the key cannot come now.
  std::optional<PastKeys> past_after(const Object& object, const Key& key) const;
  // True if a key turns the formula beside the shape into another one, apart from the
  // number of keys.
  bool changes_rest(const Object& object, const Key& key);
  Formula with_shape(const Object& object, Formula rest, const Key* key = nullptr);
  bool has_room(const Object& object, const Key& key) const;
  bool may_come(uint32_t object, uint32_t key);
  Formula free_texts(uint32_t object, const Numbers& sets);
  const Plan& shape_plan(uint32_t shape, uint32_t key);

  Schema& schema_;
  Formulas& formulas_;
  Texts& texts_;
  Liveness& liveness_;
  Planner& planner_;
  ListTable& lists_;
  const KeyOrderRule rule_;

  ContentsTable<PastKeys> pasts_;
  std::unordered_map<Formula, Parts> parts_;
  std::map<std::pair<Formula, uint32_t>, uint32_t> shape_numbers_;
  std::deque<Shape> shapes_;
  std::map<std::array<uint32_t, 3>, uint32_t> object_numbers_;
  std::deque<Object> objects_;
  std::map<std::pair<uint32_t, Numbers>, std::vector<FreeKey>> free_keys_;  // by order and sets
  std::map<uint32_t, std::vector<OpenOrder>> open_orders_;                  // by value formulas
  std::deque<Order> orders_;
  std::map<std::pair<uint32_t, Numbers>, uint32_t> key_numbers_;
  std::deque<Key> keys_;
  std::map<std::pair<uint32_t, uint32_t>, Plan> key_plans_;  // by object and key
};

}  // namespace structout::json
