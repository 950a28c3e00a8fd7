// oneOf: exactly one of several branches. Branches that exclude each other are only
// alternatives; an exactly-one formula is made for each group of branches that may overlap.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/sorted_set.h"
#include "json/document/decimal.h"
#include "json/formulas/schema.h"

namespace structout::json {

namespace {

constexpr size_t kMaxBranches = 400;  // each is compared with all others

using Scalars = std::vector<std::string>;  // sorted, each once

// A text for each null, boolean, number and string; equal values have equal texts.
std::string scalar_text(const Value& value) {
  if (value.is_string()) return '"' + value.text;
  if (value.is_number()) return Decimal(value.text).text();
  return value.kind == ValueKind::kNull ? "null" : value.kind == ValueKind::kTrue ? "true" : "false";
}

std::optional<Scalars> scalars(const std::vector<Value>& values) {
  Scalars texts;
  for (const Value& value : values) {
    if (value.is_array() || value.is_object()) return std::nullopt;
    texts.push_back(scalar_text(value));
  }
  engine::make_set(texts);
  return texts;
}

bool are_disjoint(const Scalars& a, const Scalars& b) {
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    if (*i == *j) return false;
    *i < *j ? ++i : ++j;
  }
  return true;
}

struct Branch {
  const Value* schema = nullptr;
  Formula formula = kNever;
  std::optional<Scalars> values;     // include all that it allows, if it lists them
  std::map<uint32_t, Scalars> keys;  // the values that it lists for names
  std::vector<uint32_t> required;
  std::vector<Formula> forbidden;  // formulas that describe keys that it does not allow
};

// A name for which two branches list disjoint values, so that an object that has the key
// satisfies at most one of them: {"kind": {"const": "a"}} and {"kind": {"const": "b"}}.
std::optional<uint32_t> discriminator(const Branch& a, const Branch& b) {
  for (const auto& [name, values] : a.keys) {
    auto found = b.keys.find(name);
    if (found != b.keys.end() && are_disjoint(values, found->second)) return name;
  }
  return std::nullopt;
}

// A name for which all these branches list values, no two of them the same.
std::optional<uint32_t> discriminator(const std::vector<const Branch*>& branches) {
  for (const auto& [name, ignored] : branches[0]->keys) {
    auto lists_values = [name = name](const Branch* branch) { return branch->keys.count(name) > 0; };
    if (!std::all_of(branches.begin(), branches.end(), lists_values)) continue;
    Scalars all;
    for (const Branch* branch : branches) {
      const Scalars& own = branch->keys.at(name);
      all.insert(all.end(), own.begin(), own.end());
    }
    std::sort(all.begin(), all.end());
    if (std::adjacent_find(all.begin(), all.end()) == all.end()) return name;
  }
  return std::nullopt;
}

bool requires_key(const Branch& branch, uint32_t name) {
  return std::find(branch.required.begin(), branch.required.end(), name) != branch.required.end();
}

}  // namespace

std::optional<Scalars> Schema::listed_values(const Value& schema, int num_references) {
  if (!schema.is_object()) return std::nullopt;
  if (!is_lone_reference(schema)) {
    if (const Value* value = document_.find(schema, "const")) return scalars({*value});
    const Value* values = schema.find("enum");
    if (values != nullptr && values->is_array()) return scalars(values->items);
  }
  const Value* target = num_references == 0 ? nullptr : reference_target(schema, "$ref");
  return target == nullptr ? std::nullopt : listed_values(*target, num_references - 1);
}

Formula Schema::exactly_one(const Value& schemas, Type type) {
  if (schemas.items.size() > kMaxBranches) {
    throw engine::LimitError("one_of_alternatives", schemas.items.size(), kMaxBranches);
  }
  std::vector<Branch> branches;
  for (const Value& schema : schemas.items) {
    Branch branch;
    branch.schema = &schema;
    branch.formula = expand(child(schema), type);
    if (branch.formula == kNever && fails_in_each_reading(schema, type)) continue;
    branch.values = listed_values(schema, kMaxReferences);
    for (Formula literal : formulas_.conjuncts(branch.formula)) {
      const FormulaNode node = formulas_[literal];
      if (node.op == Op::kRequired) branch.required.push_back(node.a);
      if (node.op == Op::kForKeys && node.b == kNever && !has_narrower_text(node.a)) branch.forbidden.push_back(node.a);
      if (node.op != Op::kForName || formulas_.op(node.b) != Op::kSchema) continue;
      std::optional<Scalars> values = listed_values(*schemas_[formulas_[node.b].a].value, kMaxReferences);
      if (values) branch.keys.emplace(node.a, std::move(*values));
    }
    branches.push_back(std::move(branch));
  }
  auto requires_forbidden = [this](const Branch& a, const Branch& b) {
    return std::any_of(a.required.begin(), a.required.end(), [&](uint32_t name) {
      return std::any_of(b.forbidden.begin(), b.forbidden.end(), [&](Formula keys) { return describes(keys, name); });
    });
  };
  auto are_apart = [&](const Branch& a, const Branch& b) {
    if (a.values && b.values && are_disjoint(*a.values, *b.values)) return true;
    if (requires_forbidden(a, b) || requires_forbidden(b, a)) return true;
    std::optional<uint32_t> name = discriminator(a, b);
    return name && (requires_key(a, *name) || requires_key(b, *name));
  };
  // A union-find structure: branches that may overlap are in one group.
  std::vector<size_t> group_of(branches.size());
  std::iota(group_of.begin(), group_of.end(), 0);
  auto find_group = [&group_of](size_t i) {
    while (group_of[i] != i) i = group_of[i] = group_of[group_of[i]];
    return i;
  };
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      budget_.spend(1);
      if (find_group(i) != find_group(j) && !are_apart(branches[i], branches[j]))
        group_of[find_group(i)] = find_group(j);
    }
  }
  std::map<size_t, std::vector<const Branch*>> groups;
  for (size_t i = 0; i < branches.size(); ++i) groups[find_group(i)].push_back(&branches[i]);
  std::vector<Formula> any;
  for (const auto& [first, group] : groups) {
    std::optional<uint32_t> name = group.size() > 1 ? discriminator(group) : std::nullopt;
    std::vector<const Value*> schemas_of_group;
    std::vector<Formula> all;
    for (const Branch* branch : group) {
      schemas_of_group.push_back(branch->schema);
      all.push_back(branch->formula);
    }
    if (group.size() == 1) {
      any.push_back(all[0]);
      continue;
    }
    if (name) any.push_back(both(required(*name), any_of(all)));
    Formula one = in_both_readings(schemas_of_group, type, [&](Type of) {
      std::vector<Formula> branches_of_group;
      for (const Value* schema : schemas_of_group) {
        Formula formula = expand(child(*schema), of);
        branches_of_group.push_back(name ? without_name(formula, *name) : formula);
      }
      return formulas_.exactly_one(std::move(branches_of_group));
    });
    any.push_back(name ? both(no(required(*name)), one) : one);
  }
  return any_of(any);
}

bool Schema::fails_in_each_reading(const Value& schema, Type type) {
  auto fails = [&](FormatReading formats) {
    return in_reading(formats, [&] { return expand(child(schema), type); }) == kNever;
  };
  bool has_one = context_.formats != FormatReading::kBoth || !document_.may_differ_in_formats(schema);
  return has_one || (fails(FormatReading::kAsserted) && fails(FormatReading::kAnnotation));
}

Formula Schema::without_name(Formula object, uint32_t name) {
  return formulas_.substitute(object, [&](Formula atom) {
    const FormulaNode& node = formulas_[atom];
    if (node.op == Op::kRequired && node.a == name) return kNever;
    return node.op == Op::kForName && node.a == name ? kAlways : atom;
  });
}

}  // namespace structout::json
