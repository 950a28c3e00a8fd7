// unevaluatedProperties and unevaluatedItems as formulas.
#include <algorithm>

#include "base/sorted_set.h"
#include "json/formulas/schema.h"

namespace structout::json {

void Schema::collect_own_evaluated(const Value& schema, Type type, Formula condition, bool is_top,
                                   std::vector<EvaluatedKeys>& keys, std::vector<EvaluatedItems>& items) {
  if (type == Type::kObject) {
    if (const Value* properties = schema.find("properties")) {
      for (const std::string& name : properties->names) keys.push_back({condition, number_of_name(name), kNever});
    }
    if (const Value* patterns = schema.find("patternProperties")) {
      for (const std::string& pattern : patterns->names) {
        keys.push_back({condition, kNoName, keys_matching(pattern, schema, "patternProperties")});
      }
    }
    if (schema.find("additionalProperties") != nullptr) keys.push_back({condition, kNoName, other_keys(schema)});
    if (!is_top && document_.find(schema, "unevaluatedProperties") != nullptr) {
      keys.push_back({condition, kNoName, kAlways});
    }
    return;
  }
  const Value *given = schema.find("items"), *prefix = document_.find(schema, "prefixItems");
  if (given != nullptr && given->is_array()) {
    items.push_back({condition, 0, uint32_t(given->items.size()), kAlways});
    if (schema.find("additionalItems") != nullptr) items.push_back({condition, 0, kNoEnd, kAlways});
  } else if (given != nullptr) {
    items.push_back({condition, 0, kNoEnd, kAlways});
  } else if (prefix != nullptr) {
    items.push_back({condition, 0, uint32_t(prefix->items.size()), kAlways});
  }
  if (!is_top && document_.find(schema, "unevaluatedItems") != nullptr) {
    items.push_back({condition, 0, kNoEnd, kAlways});
  }
  if (const Value* contains = document_.find(schema, "contains");
      contains != nullptr && document_.draft(schema) >= 2020) {
    items.push_back({condition, 0, kNoEnd, child(*contains)});
  }
}

void Schema::collect_evaluated(const Value& schema, Type type, Formula condition, bool is_top, int depth,
                               std::vector<EvaluatedKeys>& keys, std::vector<EvaluatedItems>& items) {
  if (!schema.is_object()) return;
  InContext within(*this, entered(schema));
  if (depth > kMaxReferences) {
    throw engine::LimitError("schema_references", uint64_t(depth), kMaxReferences);
  }
  auto collect = [&](const Value& part, Formula also) {
    collect_evaluated(part, type, both(condition, also), false, depth + 1, keys, items);
  };
  auto expanded = [&](const Value& part) { return expand(child(part), type); };
  for (std::string_view keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    if (const Value* target = reference_target(schema, keyword)) collect(*target, kAlways);
  }
  if (is_lone_reference(schema)) return;
  collect_own_evaluated(schema, type, condition, is_top, keys, items);
  if (const Value* list = schema.find("allOf")) {
    for (const Value& each : list->items) collect(each, kAlways);
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
  const Value* dependent = document_.find(schema, "dependentSchemas");
  if (dependent == nullptr || type != Type::kObject) return;
  for (size_t i = 0; i < dependent->names.size(); ++i) {
    collect(dependent->items[i], required(number_of_name(dependent->names[i])));
  }
}

// Each key that no other keyword has evaluated must satisfy the schema. So for each name,
// and for each cell of the other keys (inside of some sets of keys, outside of the others):
// its keys satisfy the schema, or one of the conditions under which they are evaluated
// holds. There are 2^n cells of n sets, so n is limited.
Formula Schema::unevaluated_keys(const Value& schema) {
  Formula value = child(*document_.find(schema, "unevaluatedProperties"));
  if (value == kAlways) return kAlways;
  std::vector<EvaluatedKeys> evaluated;
  std::vector<EvaluatedItems> unused;
  collect_evaluated(schema, Type::kObject, kAlways, true, 0, evaluated, unused);
  std::vector<uint32_t> names;
  std::vector<Formula> sets;  // of keys that are evaluated under some condition
  for (const EvaluatedKeys& each : evaluated) {
    if (each.name != kNoName) {
      names.push_back(each.name);
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
  Formula others = no(keys_named(names));
  for (uint32_t cell = 0; cell < 1u << sets.size(); ++cell) {  // the keys inside and outside of each set
    std::vector<Formula> inside = {others}, any;
    for (size_t i = 0; i < sets.size(); ++i) inside.push_back(cell >> i & 1 ? sets[i] : no(sets[i]));
    Formula keys = all_of(inside);
    names_outside_[keys] = names;
    for (const EvaluatedKeys& each : evaluated) {
      if (each.name != kNoName) continue;
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
  std::vector<EvaluatedKeys> unused;
  std::vector<EvaluatedItems> evaluated;
  collect_evaluated(schema, Type::kArray, kAlways, true, 0, unused, evaluated);
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
