// Whether some value, object or array satisfies a formula.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "json/schema.h"

namespace structout::json {

// The names that the keys of an object may have, except for free ones, in the order of
// their declaration.
struct KeyOrder {
  std::vector<uint32_t> names;
  std::unordered_map<uint32_t, uint32_t> positions;  // by name
};

// Positions of a KeyOrder whose keys cannot follow any more.
using PastKeys = std::vector<bool>;

// A key of an object: one of the names of its order, or a free one that stands for all
// with the same sets.
struct Key {
  static constexpr uint32_t kFree = UINT32_MAX;
  uint32_t name = kFree;
  std::vector<Formula> sets{};  // of a free key: those formulas on keys that describe it

  bool is_free() const { return name == kFree; }
  bool operator==(const Key& other) const { return name == other.name && sets == other.sets; }
};

class Liveness {
 public:
  explicit Liveness(Schema& schema) : schema_(schema), formulas_(schema.formulas()), texts_(schema.texts()) {}

  // Whether a value satisfies a child formula.
  bool is_satisfiable(Formula child);

  // Whether an object that has the past keys can be continued so that it satisfies a
  // formula. `order` must have all names of the formula.
  bool is_object_live(Formula object, const KeyOrder& order, const PastKeys& past);

  // An equal formula that says how many keys there can be, in each branch that needs some
  // number of them. What is left of the formula after some keys then tells what is left of
  // this number.
  Formula with_key_bounds(Formula object);

  // Whether more items can follow, maybe none, so that the array satisfies a formula.
  bool is_array_live(Formula array);

  // The same, if items must not be among those in canonical form. What it takes into
  // account are items of which there are few: see all_values().
  bool is_array_live(Formula array, const TextSet& used);

  // Whether the atom kForName or kForKeys applies to a key.
  bool applies(const FormulaNode& atom, const Key& key);

  // The free keys: for each combination of the formulas on keys that some key outside of
  // the order satisfies, the key that stands for it.
  std::vector<Key> free_keys(const std::vector<Formula>& sets, const KeyOrder& order);
  // The same, or none if they are too many.
  std::optional<std::vector<Key>> some_free_keys(const std::vector<Formula>& sets, const KeyOrder& order);

  // The free keys that have values if atoms kForKeys hold, as a formula on their texts.
  Formula free_texts(const std::vector<Formula>& for_keys, const KeyOrder& order);

  // A formula that describes the keys for which `key` stands.
  Formula description(const Key& key, const std::vector<Formula>& sets, const KeyOrder& order);

  // A formula that describes the keys outside of an order.
  Formula outside(const KeyOrder& order);

  // The texts of all values that satisfy a child formula, where numbers have one
  // spelling. Null if there are many, or arrays or objects among them.
  using Values = std::shared_ptr<const std::vector<std::string>>;
  Values all_values(Formula child);

  // Whether some array or object satisfies a child formula.
  bool has_compound(Formula child);

 private:
  using Literals = std::vector<Formula>;
  class Decision;
  class ImplicantSearch;
  struct ObjectSearch;
  struct ArraySearch;

  // Also guards the stack: what a schema nests and repeats decides how deep a search goes.
  void spend(uint64_t steps);
  bool is_satisfiable(Formula child, Type type);
  Formula with_key_bounds(Formula object, Literals around);
  bool are_object_literals_live(const Literals& literals, const KeyOrder& order, const PastKeys& past,
                                Literals* conflict);
  bool is_some_implicant_live(Formula array, const TextSet& used);
  std::optional<Literals> implicant(Formula formula);
  void keep(std::unordered_map<std::string, bool>& results, const std::string& key, bool is_live);

  Schema& schema_;
  Formulas& formulas_;
  Texts& texts_;
  std::unordered_map<Formula, bool> satisfiable_, live_arrays_;
  std::unordered_map<std::string, bool> live_objects_;
  std::unordered_map<Formula, Values> all_values_;
  std::vector<uint32_t> variable_numbers_;       // of the present ImplicantSearch, by atom
  std::unordered_map<Formula, bool> preferred_;  // the truth of atoms that the last searches chose
  // An answer "no" that assumed another one of what is being decided is not kept.
  std::unordered_set<Formula> being_decided_, assumed_;
  const char* stack_ = nullptr;  // where the outermost decision began
};

}  // namespace structout::json
