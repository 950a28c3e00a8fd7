// unevaluatedProperties and unevaluatedItems as formulas.
#include <algorithm>

#include "base/sorted_set.h"
#include "json/formulas/schema.h"

namespace structout::json {

void Schema::collect_own_keys(const Value& schema, Formula condition, bool is_top, Evaluated& found) {
  auto require = [&](Formula also, const Value& names) {
    for (const Value& name : names.items) {
      found.required.push_back({both(condition, also), number_of_name(name.text), kNever, kAlways});
    }
  };
  if (const Value* properties = schema.find("properties")) {
    found.names_keys = true;
    for (size_t i = 0; i < properties->items.size(); ++i) {
      found.keys.push_back({condition, number_of_name(properties->names[i]), kNever, child(properties->items[i])});
    }
  }
  if (const Value* patterns = schema.find("patternProperties")) {
    found.names_keys = true;
    for (size_t i = 0; i < patterns->items.size(); ++i) {
      Formula keys = keys_matching(patterns->names[i], schema, "patternProperties");
      found.keys.push_back({condition, kNoName, keys, child(patterns->items[i])});
    }
  }
  const Value* additional = schema.find("additionalProperties");
  if (additional != nullptr && child(*additional) != kNever) {  // else there are no such keys under the condition
    found.keys.push_back({condition, kNoName, other_keys(schema), child(*additional)});
  }
  const Value* rest = is_top ? nullptr : document_.find(schema, "unevaluatedProperties");
  if (rest != nullptr) found.keys.push_back({condition, kNoName, kAlways, child(*rest)});
  if (const Value* names = schema.find("required"); names != nullptr && names->is_array()) require(kAlways, *names);
  for (std::string_view keyword : {"dependencies", "dependentRequired"}) {
    const Value* dependencies = document_.find(schema, keyword);
    if (dependencies == nullptr) continue;
    for (size_t i = 0; i < dependencies->items.size(); ++i) {
      if (dependencies->items[i].is_array()) {
        require(required(number_of_name(dependencies->names[i])), dependencies->items[i]);
      }
    }
  }
}

void Schema::collect_own_items(const Value& schema, Formula condition, bool is_top, Evaluated& found) {
  for (const Items& items : own_items(schema)) {
    found.items.push_back({condition, items.begin, items.end, kAlways, items.child});
  }
  const Value* others = is_top ? nullptr : document_.find(schema, "unevaluatedItems");
  if (others != nullptr) found.items.push_back({condition, 0, kNoEnd, kAlways, child(*others)});
  if (const Value* contains = document_.find(schema, "contains");
      contains != nullptr && document_.draft(schema) >= 2020) {
    found.items.push_back({condition, 0, kNoEnd, child(*contains), kAlways});
  }
}

void Schema::collect_evaluated(const Value& schema, Type type, Formula condition, bool is_top, int depth,
                               Evaluated& found) {
  if (!schema.is_object()) return;
  InContext within(*this, entered(schema));
  if (depth > kManyReferences && always_refers_to_itself(schema)) return;  // no value has it
  if (depth > kMaxReferences) {
    throw engine::LimitError("schema_references", uint64_t(depth), kMaxReferences);
  }
  budget_.spend(1);
  auto collect = [&](const Value& part, Formula also) {
    collect_evaluated(part, type, both(condition, also), false, depth + 1, found);
  };
  auto expanded = [&](const Value& part) { return expand(child(part), type); };
  for (std::string_view keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    if (const Value* target = reference_target(schema, keyword)) collect(*target, kAlways);
  }
  if (is_lone_reference(schema)) return;
  if (type == Type::kObject) {
    collect_own_keys(schema, condition, is_top, found);
  } else {
    collect_own_items(schema, condition, is_top, found);
  }
  for (const char* keyword : {"allOf", "extends"}) {
    const Value* all = document_.find(schema, keyword);
    if (all == nullptr) continue;
    if (all->is_object()) {
      collect(*all, kAlways);
    } else {
      for (const Value& each : all->items) collect(each, kAlways);
    }
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const Value* list = schema.find(keyword);
    if (list == nullptr) continue;
    for (const Value& each : list->items) collect(each, expanded(each));
  }
  if (const Value* test = document_.find(schema, "if")) {
    Formula holds = expanded(*test);
    collect(*test, holds);
    if (const Value* then = document_.find(schema, "then")) collect(*then, holds);
    if (const Value* otherwise = document_.find(schema, "else")) collect(*otherwise, no(holds));
  }
  if (type != Type::kObject) return;
  for (std::string_view keyword : {"dependencies", "dependentSchemas"}) {
    const Value* dependent = document_.find(schema, keyword);
    if (dependent == nullptr || (keyword == "dependencies" && document_.draft(schema) > 7)) continue;
    for (size_t i = 0; i < dependent->names.size(); ++i) {
      collect(dependent->items[i], required(number_of_name(dependent->names[i])));
    }
  }
}

Formula Schema::unevaluated_keys(const Value& schema) {
  Formula value = child(*document_.find(schema, "unevaluatedProperties"));
  if (value == kAlways) return kAlways;
  Evaluated found;
  collect_evaluated(schema, Type::kObject, kAlways, true, 0, found);
  return for_other_keys(found.keys, value);
}

// Each key that no other keyword has evaluated must satisfy the schema. So for each name,
// and for each cell of the other keys (inside of some sets of keys, outside of the others):
// its keys satisfy the schema, or one of the conditions under which they are evaluated
// holds. There are 2^n cells of n sets, so n is limited. Sets that are evaluated in any
// case have no cells.
Formula Schema::for_other_keys(const std::vector<EvaluatedKeys>& evaluated, Formula value) {
  std::vector<uint32_t> names;
  std::vector<Formula> sets, always;  // keys that are evaluated under some condition, and in any case
  for (const EvaluatedKeys& each : evaluated) {
    if (each.name != kNoName) {
      names.push_back(each.name);
    } else if (each.condition == kAlways) {
      always.push_back(each.keys);
    } else if (std::find(sets.begin(), sets.end(), each.keys) == sets.end()) {
      sets.push_back(each.keys);
    }
  }
  engine::make_set(names);
  constexpr size_t kMaxSets = 6;
  if (sets.size() > kMaxSets) {
    throw engine::LimitError("unevaluated_key_sets", sets.size(), kMaxSets);
  }
  std::vector<Formula> all;
  for (uint32_t name : names) {
    std::vector<Formula> any = {for_name(name, value)};
    for (const EvaluatedKeys& each : evaluated) {
      if (each.name == name || (each.name == kNoName && describes(each.keys, name))) any.push_back(each.condition);
    }
    all.push_back(any_of(any));
  }
  Formula others = no(either(keys_named(names), any_of(always)));
  for (uint32_t cell = 0; cell < 1u << sets.size(); ++cell) {  // the keys inside and outside of each set
    std::vector<Formula> inside = {others}, any;
    for (size_t i = 0; i < sets.size(); ++i) inside.push_back(cell >> i & 1 ? sets[i] : no(sets[i]));
    Formula keys = all_of(inside);
    names_outside_[keys] = names;
    for (const EvaluatedKeys& each : evaluated) {
      if (each.name != kNoName || each.condition == kAlways) continue;
      size_t set = size_t(std::find(sets.begin(), sets.end(), each.keys) - sets.begin());
      if (cell >> set & 1) any.push_back(each.condition);
    }
    any.push_back(for_keys(keys, value));
    all.push_back(any_of(any));
  }
  return all_of(all);
}

// As unevaluated_keys(), for each index up to the last bound, and then for all later items
// together. A `contains` under a condition evaluates only items that satisfy it, so the
// formula has an operand for each subset of these conditions.
Formula Schema::unevaluated_items(const Value& schema) {
  Formula value = child(*document_.find(schema, "unevaluatedItems"));
  if (value == kAlways) return kAlways;
  Evaluated found;
  collect_evaluated(schema, Type::kArray, kAlways, true, 0, found);
  const std::vector<EvaluatedItems>& evaluated = found.items;
  uint32_t num_single = 0;               // items before the last bound
  std::vector<EvaluatedItems> contains;  // under a condition
  for (const EvaluatedItems& each : evaluated) {
    if (each.contains == kAlways) {
      if (each.end != kNoEnd) num_single = std::max(num_single, each.end);
    } else if (each.condition == kAlways) {
      value = either(value, each.contains);
    } else {
      contains.push_back(each);
    }
  }
  constexpr size_t kMaxContains = 6;
  if (contains.size() > kMaxContains) {
    throw engine::LimitError("unevaluated_contains", contains.size(), kMaxContains);
  }
  std::vector<Formula> all;
  for (uint32_t i = 0; i <= num_single; ++i) {
    std::vector<Formula> any;
    for (const EvaluatedItems& each : evaluated) {
      if (each.contains == kAlways && each.begin <= i && i < each.end) any.push_back(each.condition);
    }
    for (uint32_t met = 0; met < 1u << contains.size(); ++met) {  // the conditions that hold at least
      std::vector<Formula> conditions;
      Formula allowed = value;
      for (size_t j = 0; j < contains.size(); ++j) {
        if ((met >> j & 1) == 0) continue;
        conditions.push_back(contains[j].condition);
        allowed = either(allowed, contains[j].contains);
      }
      conditions.push_back(for_items(i, i == num_single ? kNoEnd : i + 1, allowed));
      any.push_back(all_of(conditions));
    }
    all.push_back(any_of(any));
  }
  return all_of(all);
}

}  // namespace structout::json
