// ValueCounts: counts the values that may follow, where keys or items must differ from
// earlier ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "json/automaton/arrays.h"
#include "json/automaton/objects.h"
#include "json/uniqueness/used_values.h"

namespace structout::json {

class SchemaAutomaton;

// Under uniqueItems an item that may become more values than came before can surely become
// a new one, and one with as few may be lost: items of {"enum": [1, 2]} end after two. If
// counts cannot decide, a search does (json/satisfiability/value_search.h). A count is memoized by its
// state, unless it depends on the names or the number of items that have come.
class ValueCounts {
 public:
  static constexpr uint32_t kMany = Texts::kManyTexts;
  static constexpr size_t kUnknownItems = SIZE_MAX;

  // A number of different values.
  struct Count {
    uint32_t least = 1;     // a lower bound; kMany: that many or more
    bool is_exact = false;  // there are no more; then no open object has free keys
    bool are_many() const { return least == kMany; }
  };

  explicit ValueCounts(SchemaAutomaton& automaton);

  // values() counts the values that the innermost array, object or scalar can still become
  // from a state. values_after() does so for a state that waits for a value, once that
  // value is complete. `seen_keys`: the indices of the names that have come. `num_items`:
  // the number of items that an array whose items differ has then, or kUnknownItems.
  Count values(State state, const PastKeys& seen_keys = {}, size_t num_items = kUnknownItems);
  Count values_after(State waiting, const PastKeys& seen_keys, size_t num_items = kUnknownItems);
  bool are_many(State state);  // whichever names have come

  // True if a state before or inside a key can continue with a key that is not used.
  // `begin`: the cursor in `used` after the bytes of the present key.
  bool has_unused_key(State state, const TextSet& used, TextSet::Cursor begin, const PastKeys& seen_keys);
  // As has_unused_key(), for an item that is a scalar.
  bool has_unused_scalar(State state, TextSet::Cursor begin);
  // True for a state before or inside a key whose free keys are few, so that they may be
  // used up.
  bool may_lack_keys(State state);

  // True if there are as many different items as an array needs. Throws SchemaError if that
  // is not known.
  bool has_enough_items(uint32_t array);
  // An array is tight if the values of earlier items, not only their number, may decide
  // that it cannot be completed: with uniqueItems, minItems 2 and prefixItems [true,
  // {"const": 1}], a first item 1 leaves no second one. stays_live() is true if an array
  // can be completed after the items `used`.
  bool is_tight(State state);
  bool stays_live(State state, const TextSet& used);
  // For a tight state that waits for an item. depends_on_truth_values() is true if the
  // other formulas that the item satisfies matter, even if it is none of the scarce values;
  // with one `contains` alone they do not, because its used values have counted.
  // may_be_scarce() is true if an item that begins with `text` may become a scarce value.
  bool depends_on_truth_values(State waiting);
  bool may_be_scarce(State waiting, const std::string& text);

 private:
  Count counted(State state, const PastKeys& seen_keys, size_t num_items);
  Count values_of(uint32_t value_formulas);
  bool has_come(const Object& object, uint32_t name, const PastKeys& seen_keys) const;
  bool has_room_for_any_key(const Object& object, const PastKeys& seen_keys) const;
  Count objects(uint32_t object, const PastKeys& seen_keys);
  Count objects_after(const InKey& key, const PastKeys& seen_keys);
  Count members(uint32_t object, uint32_t key, const PastKeys& seen_keys);
  Count arrays(uint32_t array, size_t num_items);
  Count constants(Formula among);
  bool may_be_named(const InKey& key, const PastKeys& seen_keys);
  // The child formulas on items that only few values, the scarce ones, satisfy, and that
  // some item may satisfy.
  std::vector<Formula> few_children(uint32_t array);

  SchemaAutomaton& automaton_;
  Schema& schema_;
  Formulas& formulas_;
  Texts& texts_;
  Liveness& liveness_;
  Planner& planner_;
  ListTable& lists_;
  Objects& objects_;
  Arrays& arrays_;
  std::unordered_map<State, Count> counts_;
  std::unordered_set<State> being_counted_;
  size_t depth_ = 0;
  std::unordered_map<State, bool> are_many_;
  std::unordered_map<uint32_t, bool> tight_arrays_;
};

}  // namespace structout::json
