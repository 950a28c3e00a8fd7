// Decides if some value, object or array satisfies a formula.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "json/formulas/schema.h"

namespace structout::json {

// The names that the keys of an object may have, except for free ones, in the order of
// their declaration.
struct KeyOrder {
  std::vector<uint32_t> names;
  std::unordered_map<uint32_t, uint32_t> positions;  // by name
};

// Positions of a KeyOrder whose keys cannot follow any more.
using PastKeys = std::vector<bool>;

// A key of an object: a name of its order, or a free key, which stands for all keys outside
// of the order that are in the same sets. With the one pattern ^x- there are two free keys:
// of the keys that begin with x-, and of all others.
struct Key {
  static constexpr uint32_t kFree = UINT32_MAX;
  uint32_t name = kFree;
  std::vector<Formula> sets{};  // of a free key: those formulas on keys that describe it

  bool is_free() const { return name == kFree; }
  bool operator==(const Key& other) const { return name == other.name && sets == other.sets; }
};

// Satisfiability of formulas, memoized by formula (for objects, also by the past keys). A
// miss for an array or an object enumerates implicants, conjunctions of literals that imply
// the formula, until ObjectSearch or ArraySearch finds one that a value can satisfy; the
// conflict of one that fails becomes a clause of the next round, as in lazy SMT solvers
// (Nieuwenhuis, Oliveras and Tinelli, 2006). Every search draws on the budget, so it ends
// or throws LimitError.
class Liveness {
 public:
  explicit Liveness(Schema& schema) : schema_(schema), formulas_(schema.formulas()), texts_(schema.texts()) {}

  // True if some finite value satisfies a child formula.
  bool is_satisfiable(Formula child);

  // True if an object that has the past keys can be continued so that it satisfies a
  // formula. `order` must have all names of the formula.
  bool is_object_live(Formula object, const KeyOrder& order, const PastKeys& past);

  // An equivalent formula. If a branch needs a minimum of keys above 1 (minProperties),
  // each branch of the result also states the most keys that can come, unless these are
  // very many: so the formula after some keys still bounds the number of those that follow.
  Formula with_key_bounds(Formula object);

  // True if an array formula can be satisfied by the items that follow, maybe none.
  bool is_array_live(Formula array);

  // True if this also holds when no item may be among the used ones, in canonical form.
  // Only child formulas with few values count, see all_values(): others are taken to have a
  // value left.
  bool is_array_live(Formula array, const TextSet& used);

  // True if the atom, kForName or kForKeys, speaks of a key.
  bool applies(const FormulaNode& atom, const Key& key);

  // The free keys: one for each combination of the formulas on keys that some key outside
  // of the order satisfies. There may be exponentially many in `sets`, so more than a limit
  // throw LimitError.
  std::vector<Key> free_keys(const std::vector<Formula>& sets, const KeyOrder& order);
  // Like free_keys(), but none if there are too many.
  std::optional<std::vector<Key>> some_free_keys(const std::vector<Formula>& sets, const KeyOrder& order);

  // The texts of the free keys that have a value under all these atoms kForKeys, as a
  // formula.
  Formula free_texts(const std::vector<Formula>& for_keys, const KeyOrder& order);

  // A formula that describes the keys for which `key` stands.
  Formula description(const Key& key, const std::vector<Formula>& sets, const KeyOrder& order);

  // A formula that describes the keys outside of an order.
  Formula outside(const KeyOrder& order);

  // The texts of all values that satisfy a child formula, where numbers have one
  // spelling. Null if there are many, or arrays or objects among them.
  using Values = std::shared_ptr<const std::vector<std::string>>;
  Values all_values(Formula child);

  // True if some array or object satisfies a child formula.
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
  Literals conflict(const Literals& literals, const TextSet& used);
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
  // The child formulas that outer calls are deciding, and those among them that a search
  // has taken to be unsatisfiable. A negative answer is not cached while there are such
  // assumptions.
  std::unordered_set<Formula> being_decided_, assumed_;
  const char* stack_ = nullptr;  // at the begin of the outermost decision
};

}  // namespace structout::json
