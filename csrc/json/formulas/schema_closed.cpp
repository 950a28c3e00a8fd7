// SchemaOptions::closes_objects: an object has only keys that some schema names which holds
// for it. It stays open where its schemas name no keys, and where one speaks of all others.
//
// So would unevaluatedProperties: false close it. But here all schemas of an object close it
// together, also those that several schemas of the object around it have for one key. So
// schemas that complete one another do not forbid each other's keys. Schemas are read as
// written, and Op::kClosed stands beside them: a closed text is valid in any case.
#include <algorithm>

#include "base/sorted_set.h"
#include "json/formulas/schema.h"

namespace structout::json {

namespace {

constexpr size_t kMaxCells = 256;  // of keys that are in the same sets

}  // namespace

Formula Schema::closed(std::vector<Source> schemas) {
  if (!options_.closes_objects) return kAlways;
  auto is_idle = [this](const Source& source) {
    return formulas_.op(source.schema) != Op::kSchema || !may_name_keys(*schemas_[formulas_[source.schema].a].value);
  };
  schemas.erase(std::remove_if(schemas.begin(), schemas.end(), is_idle), schemas.end());
  if (schemas.empty()) return kAlways;
  engine::make_set(schemas);
  auto [known, is_new] = closed_numbers_.emplace(std::move(schemas), uint32_t(closed_.size()));
  if (is_new) closed_.push_back(known->first);
  return formulas_.atom(Op::kClosed, known->second);
}

bool Schema::may_name_keys(const Value& schema) {
  std::vector<const Value*> pending = {&schema};
  std::unordered_set<const Value*> seen;
  while (!pending.empty()) {
    const Value& next = *pending.back();
    pending.pop_back();
    if (!next.is_object() || !seen.insert(&next).second) continue;
    budget_.spend(1);
    for (size_t i = 0; i < next.names.size(); ++i) {
      const std::string& keyword = next.names[i];
      const Value& value = next.items[i];
      if (keyword == "$ref" && value.is_string()) {
        if (const Value* target = document_.referred(next, value.text)) pending.push_back(target);
      } else if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") {
        for (const Value& each : value.items) pending.push_back(&each);
      } else if (keyword == "required" || keyword == "dependentRequired" || keyword == "$dynamicRef" ||
                 keyword == "$recursiveRef") {
        return true;
      } else if (keyword != "type" && !is_annotation(keyword) &&
                 subschema_form(keyword, document_.draft(next)) != SubschemaForm::kNone) {
        return true;
      }
    }
  }
  return false;
}

// Alternatives alone are closed one by one: an object has the keys of one of them.
Formula Schema::expand_closed(uint32_t number, Type type) {
  const std::vector<Source> schemas = closed_[number];
  const Node node = schemas_[formulas_[schemas[0].schema].a];
  for (std::string_view keyword : {"anyOf", "oneOf"}) {
    const Value* alternatives = node.value->find(keyword);
    bool is_alone = std::all_of(node.value->names.begin(), node.value->names.end(), [&](const std::string& name) {
      return name == keyword || name == "type" || name == "discriminator" || is_annotation(name);
    });
    if (schemas.size() > 1 || !schemas[0].is_certain || alternatives == nullptr || !is_alone) continue;
    InContext within(*this, node.context);
    std::vector<Formula> any;
    for (const Value& each : alternatives->items) {
      Formula schema = child(each);
      any.push_back(expand(both(schema, closed({{schema, true}})), type));
    }
    return any_of(any);
  }
  if (type == Type::kObject) return expand_closed_object(schemas);
  return type == Type::kArray ? expand_closed_array(schemas) : kAlways;
}

Schema::Evaluated Schema::evaluated_by(const std::vector<Source>& schemas, Type type) {
  Evaluated found;
  for (const Source& source : schemas) {
    const Node node = schemas_[formulas_[source.schema].a];
    InContext within(*this, node.context);
    Formula condition = source.is_certain ? kAlways : expand(source.schema, type);
    collect_evaluated(*node.value, type, condition, false, 0, found);
  }
  return found;
}

Formula Schema::expand_closed_object(const std::vector<Source>& schemas) {
  Evaluated found = evaluated_by(schemas, Type::kObject);
  std::vector<uint32_t> names;
  std::vector<EvaluatedKeys> sets;  // of other keys, whose values may be closed
  for (const EvaluatedKeys& each : found.keys) {
    if (each.name != kNoName) {
      names.push_back(each.name);
    } else if (closed({{each.value, true}}) != kAlways) {
      sets.push_back(each);
    }
  }
  engine::make_set(names);
  std::vector<Formula> all;
  for (uint32_t name : names) {
    std::vector<Source> named;
    for (const EvaluatedKeys& each : found.keys) {
      bool applies = each.name == kNoName ? describes(each.keys, name) : each.name == name;
      if (applies) named.push_back({each.value, each.condition == kAlways});
    }
    all.push_back(for_name(name, closed(std::move(named))));
  }
  // Divides the other keys by the sets that they are in.
  std::function<void(size_t, Formula, std::vector<Source>)> divide = [&](size_t next, Formula keys,
                                                                         std::vector<Source> values) {
    if (keys == kNever || !texts_.is_live(texts_.start(TextKind::kString, keys))) return;
    if (next == sets.size()) {
      names_outside_[keys] = names;
      return all.push_back(for_keys(keys, closed(std::move(values))));
    }
    if (all.size() > names.size() + kMaxCells) throw engine::LimitError("schema_key_sets", kMaxCells + 1, kMaxCells);
    divide(next + 1, both(keys, no(sets[next].keys)), values);
    values.push_back({sets[next].value, sets[next].condition == kAlways});
    divide(next + 1, both(keys, sets[next].keys), std::move(values));
  };
  divide(0, no(keys_named(names)), {});
  if (found.names_keys) {
    found.keys.insert(found.keys.end(), found.required.begin(), found.required.end());
    all.push_back(for_other_keys(found.keys, kNever));
  }
  return all_of(all);
}

Formula Schema::expand_closed_array(const std::vector<Source>& schemas) {
  const Evaluated found = evaluated_by(schemas, Type::kArray);
  uint32_t num_single = 0;  // items before the last bound
  for (const EvaluatedItems& each : found.items) {
    num_single = std::max(num_single, each.end == kNoEnd ? each.begin : each.end);
  }
  std::vector<Formula> all;
  for (uint32_t i = 0; i <= num_single; ++i) {
    std::vector<Source> sources;
    for (const EvaluatedItems& each : found.items) {
      if (each.begin <= i && i < each.end) sources.push_back({each.value, each.condition == kAlways});
    }
    all.push_back(for_items(i, i == num_single ? kNoEnd : i + 1, closed(std::move(sources))));
  }
  return all_of(all);
}

}  // namespace structout::json
