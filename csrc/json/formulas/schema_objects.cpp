// Keywords of objects as formulas.
#include <algorithm>

#include "automata/compile.h"
#include "base/sorted_set.h"
#include "json/formulas/schema.h"

namespace structout::json {

namespace {

constexpr size_t kMaxListedKeys = 64;    // a pattern of fewer keys is taken as their names
constexpr size_t kMaxCountedKeys = 256;  // an object of fewer possible keys has at most so many

}  // namespace

uint32_t Schema::number_of_name(const std::string& name) {
  auto known = name_numbers_.find(name);
  if (known != name_numbers_.end()) return known->second;
  names_.push_back({name, engine::spelled_canonically(name)});
  return name_numbers_[name] = uint32_t(names_.size() - 1);
}

Formula Schema::keys_named(const std::vector<uint32_t>& names) {
  std::vector<std::string> texts;
  for (uint32_t number : names) texts.push_back(name(number));
  return texts.empty() ? kNever : texts_.exact_strings(std::move(texts));
}

Formula Schema::keys_matching(const std::string& pattern, const Value& schema, const std::string& pointer) {
  return at(schema, pointer, [&] { return texts_.strings_matching(pattern); });
}

Formula Schema::for_keys(Formula keys, Formula child) {
  if (child == kAlways || keys == kNever) return kAlways;
  std::optional<std::vector<uint32_t>> few = few_names(keys);
  if (!few) return formulas_.atom(Op::kForKeys, keys, child);
  std::vector<Formula> all;
  for (uint32_t name : *few) all.push_back(for_name(name, child));
  return all_of(all);
}

Formula Schema::other_keys(const Value& schema) {
  std::vector<Formula> none;
  std::vector<uint32_t> names;
  if (const Value* properties = schema.find("properties")) {
    for (const std::string& each : properties->names) names.push_back(number_of_name(each));
    none.push_back(no(keys_named(names)));
  }
  if (const Value* patterns = schema.find("patternProperties")) {
    for (const std::string& pattern : patterns->names) {
      none.push_back(no(keys_matching(pattern, schema, "patternProperties")));
    }
  }
  Formula keys = all_of(none);
  std::vector<uint32_t>& outside = names_outside_[keys];
  outside.insert(outside.end(), names.begin(), names.end());
  return keys;
}

// Keys never repeat, so an object has at most as many as `keys` accepts. Adds this bound if
// there are at most kMaxCountedKeys of them.
void Schema::bound_keys(Formula keys, std::vector<Formula>& all) {
  std::optional<std::vector<std::string>> few = texts_.all_strings(keys, kMaxCountedKeys);
  if (few) all.push_back(no(min_keys(uint32_t(few->size()) + 1)));
}

void Schema::check_names(const Value& schema) const {
  for (std::string_view keyword :
       {"properties", "patternProperties", "dependencies", "dependentRequired", "dependentSchemas"}) {
    const Value* named = schema.find(keyword);
    if (named == nullptr || named->is_object()) continue;
    throw SchemaError(ErrorKind::kMalformed, "must be an object",
                      document_.pointer_to(schema) + "/" + std::string(keyword));
  }
}

void Schema::add_object(const Value& schema, std::vector<Formula>& all) {
  if (const Value* properties = schema.find("properties")) {
    for (size_t i = 0; i < properties->items.size(); ++i) {
      const Value& property = properties->items[i];
      uint32_t name = number_of_name(properties->names[i]);
      all.push_back(for_name(name, child(property)));
      const Value* is_required = property.is_object() ? property.find("required") : nullptr;
      if (is_required != nullptr && is_required->kind == ValueKind::kTrue) all.push_back(required(name));
    }
  }
  if (const Value* patterns = schema.find("patternProperties")) {
    for (size_t i = 0; i < patterns->items.size(); ++i) {
      Formula keys = keys_matching(patterns->names[i], schema, "patternProperties");
      all.push_back(for_keys(keys, child(patterns->items[i])));
    }
  }
  if (const Value* additional = schema.find("additionalProperties")) {
    Formula others = other_keys(schema);
    all.push_back(for_keys(others, child(*additional)));
    if (child(*additional) == kNever && schema.find("patternProperties") != nullptr) bound_keys(no(others), all);
  }
  if (const Value* names = schema.find("required"); names != nullptr && names->is_array()) {
    for (const Value& each : names->items) all.push_back(required(number_of_name(each.text)));
  }
  if (const Value* least = schema.find("minProperties")) {
    all.push_back(min_keys(count_of(*least, schema, "minProperties")));
  }
  if (const Value* most = schema.find("maxProperties")) {
    all.push_back(no(min_keys(count_of(*most, schema, "maxProperties") + 1)));
  }
  if (const Value* names = document_.find(schema, "propertyNames")) {
    Formula allowed = expand(child(*names), Type::kString);
    std::optional<std::vector<uint32_t>> few = few_names(allowed);
    std::vector<uint32_t>& outside = names_outside_[no(allowed)];
    if (few) outside.insert(outside.end(), few->begin(), few->end());
    all.push_back(for_keys(no(allowed), kNever));
    if (!few) bound_keys(allowed, all);
  }
  for (std::string_view keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Value* dependencies = document_.find(schema, keyword);
    if (dependencies == nullptr || (context_.ignores_dependencies && keyword == "dependencies")) continue;
    for (size_t i = 0; i < dependencies->items.size(); ++i) {
      const Value& needed = dependencies->items[i];
      std::vector<Formula> needs;
      if (needed.is_array()) {
        for (const Value& each : needed.items) needs.push_back(required(number_of_name(each.text)));
      } else if (needed.is_string()) {
        needs.push_back(required(number_of_name(needed.text)));
      } else {
        needs.push_back(expand(child(needed), Type::kObject));
      }
      all.push_back(either(no(required(number_of_name(dependencies->names[i]))), all_of(needs)));
    }
  }
  if (document_.find(schema, "unevaluatedProperties") != nullptr) {
    all.push_back(in_both_readings({&schema}, Type::kObject, [&](Type) { return unevaluated_keys(schema); }));
  }
}

bool Schema::describes(Formula keys, uint32_t name) {
  auto known = describes_.find(uint64_t(keys) << 32 | name);
  if (known != describes_.end()) return known->second;
  return describes_[uint64_t(keys) << 32 | name] = texts_.matches(TextKind::kString, keys, names_[name].spelled);
}

std::optional<std::vector<uint32_t>> Schema::few_names(Formula keys) {
  if (has_narrower_text(keys)) return std::nullopt;
  std::optional<std::vector<std::string>> few = texts_.all_strings(keys, kMaxListedKeys);
  if (!few) return std::nullopt;
  std::vector<uint32_t> names;
  for (const std::string& spelled : *few) names.push_back(number_of_name(parse_value("\"" + spelled + "\"").text));
  return names;
}

const std::vector<uint32_t>& Schema::names_in(Formula object) {
  auto found = names_in_.find(object);
  if (found != names_in_.end()) return found->second;
  std::vector<uint32_t> names;
  for (Formula atom : formulas_.atoms(object)) {
    const FormulaNode& node = formulas_[atom];
    if (node.op == Op::kRequired || node.op == Op::kForName) names.push_back(node.a);
    if (node.op == Op::kAmong) {
      for (uint32_t name : listed_.keys(node.a)) names.push_back(name);
    }
    if (node.op != Op::kForKeys) continue;
    auto outside = names_outside_.find(node.a);
    if (outside != names_outside_.end()) names.insert(names.end(), outside->second.begin(), outside->second.end());
  }
  engine::make_set(names);
  return names_in_.emplace(object, std::move(names)).first->second;
}

}  // namespace structout::json
