// Satisfiability of formulas on arrays.
#include <algorithm>
#include <functional>

#include "json/satisfiability/liveness.h"

namespace structout::json {

namespace {

constexpr size_t kMaxRequiredItems = 1024;  // of items that must be there
constexpr size_t kMaxTestedLiterals = 64;   // of a conflict: others are not made smaller
constexpr uint32_t kNoEnd = UINT32_MAX;
constexpr uint32_t kAnyNumberOfItems = UINT32_MAX;

}  // namespace

bool Liveness::is_array_live(Formula array) {
  if (formulas_.op(array) == Op::kAmong) return true;
  array = schema_.without_among(array);
  if (array == kAlways || array == kNever) return array == kAlways;
  auto known = live_arrays_.find(array);
  if (known != live_arrays_.end()) return known->second;
  bool is_live = is_some_implicant_live(array, {});
  if (is_live || assumed_.empty()) live_arrays_.emplace(array, is_live);
  return is_live;
}

bool Liveness::is_array_live(Formula array, const TextSet& used) {
  return is_array_live(array) && is_some_implicant_live(array, used);
}

// Decides if an array can satisfy a conjunction of literals, by backtracking: it assigns a
// index to each item that must exist, such as one that `contains` needs, then checks upper
// bounds and that items can differ. Items from `last_bound` on all have the same literals.
struct Liveness::ArraySearch {
  struct Items {
    uint32_t begin, end;
    Formula child;
  };
  struct Existing {  // items of a range of which `count` must satisfy `child`
    uint32_t begin, end, count;
    Formula child;
  };
  struct Bounded {  // at most `max` items satisfy `child`
    uint32_t max;
    Formula child;
  };
  struct RequiredItem {  // an item that must exist: before the last bound, or after it
    uint32_t index;
    std::vector<Formula> also;
  };

  ArraySearch(Liveness& liveness, const Literals& literals, const TextSet& used)
      : liveness(liveness), formulas(liveness.formulas_), used(used) {
    for (Formula literal : literals) add(literal);
    auto take_bounds = [this](uint32_t begin, uint32_t end) {
      last_bound = std::max({last_bound, begin, end == kNoEnd ? 0 : end});
    };
    for (const Items& items : all) take_bounds(items.begin, items.end);
    for (const Existing& items : existing) take_bounds(items.begin, items.end);
  }

  void add(Formula literal) {
    FormulaNode node = formulas[literal];
    bool is_negated = node.op == Op::kNot;
    if (is_negated) node = formulas[node.a];
    switch (node.op) {
      case Op::kForItems:
        if (is_negated) {
          existing.push_back({node.a, node.b, 1, formulas.negation(node.c)});
        } else {
          all.push_back({node.a, node.b, node.c});
        }
        break;
      case Op::kMinItems:
        if (is_negated) {
          max_items = std::min(max_items, node.a - 1);
        } else {
          min_items = std::max(min_items, node.a);
        }
        break;
      case Op::kHas:
        if (!is_negated) {
          existing.push_back({0, kNoEnd, node.b, node.a});
        } else if (node.b == 1) {
          all.push_back({0, kNoEnd, formulas.negation(node.a)});
        } else {
          bounded.push_back({node.b - 1, node.a});
        }
        break;
      case Op::kUnique:
        (is_negated ? is_repeated : is_unique) = true;
        break;
      default:
        break;
    }
  }

  bool is_live() {
    if (is_repeated) return false;  // items are never repeated where the schema speaks of it
    uint32_t length = 0;            // of the longest possible array, or one more than the last bound
    while (length <= last_bound && length < max_items && is_satisfiable(length)) ++length;
    cap = length > last_bound ? max_items : length;
    if (is_unique && cap > 0 && !are_different_items_possible()) return false;
    auto may_exist = [this](const Existing& items) {
      for (uint32_t i = items.begin; i < std::min(items.end, cap) && i <= std::max(items.begin, last_bound); ++i) {
        if (is_satisfiable(i, {items.child})) return true;
      }
      return false;
    };
    return min_items <= cap && std::all_of(existing.begin(), existing.end(), may_exist) && assign_items(0, 0, 0);
  }

  Formula need(uint32_t index, const std::vector<Formula>& also = {}) {
    liveness.spend(1 + all.size() / 16);
    std::vector<Formula> needs = also;
    for (const Items& items : all) {
      if (items.begin <= index && index < items.end) needs.push_back(items.child);
    }
    return formulas.conjunction(std::move(needs));
  }

  bool is_satisfiable(uint32_t index, const std::vector<Formula>& also = {}) {
    return liveness.is_satisfiable(need(index, also));
  }

  // Lowers `cap` to the number of values that items have. False if some literal needs more
  // different items than there are.
  bool are_different_items_possible() {
    std::vector<Formula> any;
    for (uint32_t i = 0; i <= last_bound; ++i) any.push_back(need(i));
    if (Values values = unused_values(formulas.disjunction(std::move(any)))) {
      cap = std::min(cap, uint32_t(values->size()));
    }
    return std::none_of(existing.begin(), existing.end(), [this](const Existing& items) {
      Values values = unused_values(items.child);
      return values && items.count > values->size();
    });
  }

  // The values of a child that are not used, if they are few.
  Values unused_values(Formula child) {
    Values values = liveness.all_values(child);
    if (values == nullptr || used.size() == 0) return values;
    auto unused = std::make_shared<std::vector<std::string>>();
    liveness.spend(values->size());
    for (const std::string& value : *values) {
      if (!used.contains(value)) unused->push_back(value);
    }
    return unused;
  }

  // True if items that satisfy these child formulas can all differ. Only child formulas
  // with few values matter: a bipartite matching of these items and values, by augmenting
  // paths.
  bool can_differ(const std::vector<Formula>& items) {
    std::vector<Values> few;
    for (Formula item : items) {
      if (Values values = unused_values(item)) few.push_back(std::move(values));
    }
    std::unordered_map<std::string, size_t> item_of;
    std::unordered_set<std::string> seen;
    std::function<bool(size_t)> find_value = [&](size_t item) {
      for (const std::string& value : *few[item]) {
        liveness.spend(1);
        if (!seen.insert(value).second) continue;
        auto found = item_of.find(value);
        if (found != item_of.end() && !find_value(found->second)) continue;
        item_of[value] = item;
        return true;
      }
      return false;
    };
    for (size_t item = 0; item < few.size(); ++item) {
      seen.clear();
      if (!find_value(item)) return false;
    }
    return true;
  }

  // Assigns items to existing[next ...], of which the first has `num_found` already: items
  // of `required` from `first` on, or new ones.
  bool assign_items(size_t next, uint32_t num_found, uint32_t first) {
    if (next == existing.size()) return has_room();
    const Existing& wanted = existing[next];
    if (num_found == wanted.count) return assign_items(next + 1, 0, 0);
    liveness.spend(1);
    for (size_t i = first; i < required.size(); ++i) {
      if (required[i].index < wanted.begin || required[i].index >= wanted.end) continue;
      required[i].also.push_back(wanted.child);
      if (is_satisfiable(required[i].index, required[i].also) && assign_items(next, num_found + 1, uint32_t(i + 1)))
        return true;
      required[i].also.pop_back();
    }
    // New items, whose number the length allows. Items after the last bound are equivalent.
    uint32_t num_after = count_items_after();
    bool has_tried_after = false;
    for (uint32_t index = wanted.begin; index < wanted.end && index < cap && !has_tried_after; ++index) {
      if (index >= last_bound) {
        has_tried_after = true;
        if (uint64_t(last_bound) + num_after >= cap) break;
      } else if (is_taken(index)) {
        continue;
      }
      if (!is_satisfiable(index, {wanted.child})) continue;
      bool are_equivalent = has_tried_after && wanted.end == kNoEnd && cap == kAnyNumberOfItems && bounded.empty();
      bool may_run_out = is_unique && unused_values(need(index, {wanted.child})) != nullptr;
      if (are_equivalent && !may_run_out) {  // there are enough of them
        if (assign_items(next + 1, 0, 0)) return true;
        continue;
      }
      if (required.size() == kMaxRequiredItems)
        throw engine::LimitError("schema_items", kMaxRequiredItems + 1, kMaxRequiredItems);
      required.push_back({index, {wanted.child}});
      if (assign_items(next, num_found + 1, uint32_t(required.size()))) return true;
      required.pop_back();
    }
    return false;
  }

  uint32_t count_items_after() const {
    return uint32_t(std::count_if(required.begin(), required.end(),
                                  [this](const RequiredItem& item) { return item.index >= last_bound; }));
  }

  bool is_taken(uint32_t index) const {
    return std::any_of(required.begin(), required.end(),
                       [index](const RequiredItem& item) { return item.index == index; });
  }

  // True if the required items, those before them, and those up to the minimum keep the
  // upper bounds, and can differ if they must.
  bool has_room() {
    if (bounded.empty() && !is_unique) return true;
    std::vector<RequiredItem> items = required;
    uint32_t num_after = count_items_after(), num_first = std::min(min_items, last_bound);
    for (const RequiredItem& item : required) num_first = std::max(num_first, std::min(item.index + 1, last_bound));
    if (num_after > 0) num_first = last_bound;
    for (uint32_t i = 0; i < num_first; ++i) {
      if (!is_taken(i)) items.push_back({i, {}});
    }
    std::vector<Formula> none;
    uint64_t most = 0;
    for (const Bounded& each : bounded) {
      none.push_back(formulas.negation(each.child));
      most += each.max;
    }
    bool counts_each = !bounded.empty() && !is_satisfiable(last_bound, none);
    Values few = is_unique ? unused_values(need(last_bound)) : nullptr;
    if (min_items > last_bound + num_after && (counts_each || few != nullptr)) {
      uint32_t num_more = min_items - last_bound - num_after;
      if (counts_each && num_more > most) return false;
      if (few != nullptr && num_more > few->size()) return false;
      if (num_more > kMaxRequiredItems) throw engine::LimitError("schema_items", num_more, kMaxRequiredItems);
      for (uint32_t i = 0; i < num_more; ++i) items.push_back({last_bound, {}});
    }
    return items.empty() || keep_bounds(items, 0, 0, items[0].also, bounded, {});
  }

  // True if items[next ...] keep within the rest of the bounds. For items[next], `also` has
  // decided on the first `num_decided` of them. `needs`: the formulas on the items before.
  bool keep_bounds(const std::vector<RequiredItem>& items, size_t next, size_t num_decided, std::vector<Formula> also,
                   std::vector<Bounded> left, std::vector<Formula> needs) {
    liveness.spend(1);
    if (!is_satisfiable(items[next].index, also)) return false;
    if (num_decided == left.size()) {
      if (is_unique) needs.push_back(need(items[next].index, also));
      if (next + 1 == items.size()) return !is_unique || can_differ(needs);
      return keep_bounds(items, next + 1, 0, items[next + 1].also, std::move(left), std::move(needs));
    }
    Bounded& bound = left[num_decided];
    also.push_back(formulas.negation(bound.child));
    if (keep_bounds(items, next, num_decided + 1, also, left, needs)) return true;
    if (bound.max == 0) return false;
    also.back() = bound.child;
    --bound.max;
    return keep_bounds(items, next, num_decided + 1, std::move(also), std::move(left), std::move(needs));
  }

  Liveness& liveness;
  Formulas& formulas;
  const TextSet& used;
  std::vector<Items> all;
  std::vector<Existing> existing;
  std::vector<Bounded> bounded;
  uint32_t min_items = 0, max_items = kAnyNumberOfItems;
  bool is_unique = false, is_repeated = false;
  uint32_t last_bound = 0;  // items from here on are equivalent
  uint32_t cap = 0;         // the most items that there can be
  std::vector<RequiredItem> required;
};

// A small unsatisfiable core of the literals. Bounds on the number of items stay in it: without
// them, more items than a limit might have to be tried.
Liveness::Literals Liveness::conflict(const Literals& literals, const TextSet& used) {
  Literals core = literals;
  for (size_t i = 0; i < core.size() && literals.size() <= kMaxTestedLiterals;) {
    bool is_negated = formulas_.op(core[i]) == Op::kNot;
    bool is_bound = is_negated && formulas_.op(formulas_[core[i]].a) == Op::kMinItems;
    Literals others = core;
    others.erase(others.begin() + ptrdiff_t(i));
    if (is_bound || ArraySearch(*this, others, used).is_live()) {
      ++i;
    } else {
      core = std::move(others);
    }
  }
  return core;
}

bool Liveness::is_some_implicant_live(Formula array, const TextSet& used) {
  std::vector<Formula> clauses = {array};
  // Items are never repeated where the formula speaks of it, so only different ones count.
  const Formula unique = formulas_.atom(Op::kUnique);
  const std::vector<Formula>& atoms = formulas_.atoms(array);
  if (std::find(atoms.begin(), atoms.end(), unique) != atoms.end()) {
    clauses = {unique, formulas_.assign(array, unique, true)};
  }
  for (;;) {
    std::optional<Literals> literals = implicant(formulas_.conjunction(clauses));
    if (!literals) return false;
    if (ArraySearch(*this, *literals, used).is_live()) return true;
    std::vector<Formula> clause;
    for (Formula literal : conflict(*literals, used)) clause.push_back(formulas_.negation(literal));
    clauses.push_back(formulas_.disjunction(std::move(clause)));
  }
}

}  // namespace structout::json
