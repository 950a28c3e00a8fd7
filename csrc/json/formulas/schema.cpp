#include "json/formulas/schema.h"

#include <algorithm>

namespace structout::json {

namespace {

constexpr size_t kMaxExpansions = 512;
constexpr size_t kBytesPerStep = 16;  // of constants, in steps of the budget

Type type_of(const Value& value) { return Type(uint8_t(value.kind)); }

bool is_type(const std::string& name, Type type) {
  switch (type) {
    case Type::kNull:
      return name == "null";
    case Type::kFalse:
    case Type::kTrue:
      return name == "boolean";
    case Type::kNumber:
      return name == "number" || name == "integer";
    case Type::kString:
      return name == "string";
    case Type::kArray:
      return name == "array";
    case Type::kObject:
      return name == "object";
  }
  return false;
}

}  // namespace

Schema::Schema(const std::string& text, const SchemaOptions& options, const engine::Limits& limits)
    : document_(text, options.documents),
      options_(options),
      budget_(limits),
      formulas_(budget_),
      texts_(formulas_, budget_, options.allowed_bytes),
      listed_([this](const std::string& name) { return number_of_name(name); }) {}

void Schema::refuse(const Value& schema, std::string_view keyword, const std::string& cause) const {
  throw SchemaError(ErrorKind::kUnsupported, cause, document_.pointer_to(schema) + "/" + std::string(keyword));
}

// -- children -----------------------------------------------------------------------

// Drafts from 2019-09 on have no `dependencies`, but some validators apply it. If that may
// make a difference, a text must be valid in both readings.
Formula Schema::root() {
  Formula root = child(document_.root());
  root = both(root, closed({{root, true}}));
  if (!document_.may_differ_in_dependencies()) return root;
  InContext without(*this, {0, true, FormatReading::kBoth});
  return both(root, child(document_.root()));
}

Formula Schema::expand(Formula child, Type type) {
  if (child == kAlways || child == kNever) return child;
  uint64_t key = uint64_t(child) * kNumTypes + uint64_t(type);
  auto found = expanded_.find(key);
  if (found != expanded_.end()) return found->second;
  budget_.spend(1);
  const FormulaNode node = formulas_[child];
  Formula expanded = kAlways;
  switch (node.op) {
    case Op::kNot:
      expanded = no(expand(node.a, type));
      break;
    case Op::kAnd:
    case Op::kOr: {
      std::vector<Formula> operands = formulas_.operands(child);
      for (Formula& operand : operands) operand = expand(operand, type);
      expanded = node.op == Op::kAnd ? all_of(operands) : any_of(operands);
      break;
    }
    case Op::kConstant:
      expanded = expand_constant(*constants_[node.a], type);
      break;
    case Op::kListed:
      expanded = expand_listed(node.a, node.b, type);
      break;
    case Op::kClosed:
      expanded = expand_closed(node.a, type);
      break;
    case Op::kCanonicalNumber:
      if (type == Type::kNumber) expanded = canonical_number();
      break;
    default: {
      const Value& schema = *schemas_[node.a].value;
      InContext within(*this, schemas_[node.a].context);
      std::pair<Formula, Type> entry(child, type);
      if (std::find(being_expanded_.begin(), being_expanded_.end(), entry) != being_expanded_.end()) {
        // No validator ends on a value of the type, so no text has one.
        if (!endless_reference_) endless_reference_ = document_.pointer_to(schema);
        if (always_refers_to_itself(schema)) return kNever;
        throw SchemaError(ErrorKind::kMalformed, "the schema refers to itself for the same value",
                          document_.pointer_to(schema));
      }
      if (being_expanded_.size() >= kMaxExpansions) {
        throw engine::LimitError("schema_references", being_expanded_.size() + 1, kMaxExpansions);
      }
      being_expanded_.push_back(entry);
      try {
        expanded = expand_schema(schema, type);
        being_expanded_.pop_back();
      } catch (engine::LimitError& error) {
        being_expanded_.pop_back();
        if (error.pointer.empty()) error.pointer = document_.pointer_to(schema);
        throw;
      } catch (...) {
        being_expanded_.pop_back();
        throw;
      }
    }
  }
  expanded_.emplace(key, expanded);
  return expanded;
}

bool Schema::always_refers_to_itself(const Value& schema) {
  std::vector<const Value*> reached = {&schema};
  for (size_t i = 0; i < reached.size(); ++i) {
    std::vector<const Value*> next = {reference_target(*reached[i], "$ref")};
    const Value* all = is_lone_reference(*reached[i]) ? nullptr : document_.find(*reached[i], "allOf");
    if (all != nullptr && all->is_array()) {
      for (const Value& each : all->items) next.push_back(&each);
    }
    for (const Value* each : next) {
      if (each == &schema) return true;
      if (each != nullptr && std::find(reached.begin(), reached.end(), each) == reached.end()) reached.push_back(each);
    }
  }
  return false;
}

std::vector<Formula> Schema::child_formulas() {
  std::vector<Formula> formulas;
  for (uint32_t i = 0; i < schemas_.size(); ++i) formulas.push_back(formulas_.atom(Op::kSchema, i));
  for (uint32_t i = 0; i < closed_.size(); ++i) {
    const Source& first = closed_[i][0];
    if (closed_[i].size() == 1 && first.is_certain) {
      formulas.push_back(both(first.schema, formulas_.atom(Op::kClosed, i)));
    }
  }
  return formulas;
}

std::string Schema::pointer_of(Formula child) {
  for (Formula atom : formulas_.atoms(child)) {
    if (formulas_.op(atom) == Op::kSchema) return document_.pointer_to(*schemas_[formulas_[atom].a].value);
  }
  return "";
}

void Schema::expand_all() {
  root();
  auto expand_from = [this](size_t& next, size_t end, Op op) {
    for (; next < end; ++next) {
      for (Type type : kAllTypes) expand(formulas_.atom(op, uint32_t(next)), type);
    }
  };
  for (size_t schema = 0, constant = 0, list = 0;
       schema < schemas_.size() || constant < constants_.size() || list < closed_.size();) {
    expand_from(schema, schemas_.size(), Op::kSchema);
    expand_from(constant, constants_.size(), Op::kConstant);
    expand_from(list, closed_.size(), Op::kClosed);
  }
}

bool Schema::is_lone_reference(const Value& schema) const {
  const Value* reference = schema.find("$ref");
  return reference != nullptr && reference->is_string() && document_.draft(schema) <= 7;
}

const Value* Schema::reference_target(const Value& schema, std::string_view keyword) {
  const Value* reference = document_.find(schema, keyword);
  if (reference == nullptr || !reference->is_string()) return nullptr;
  return &document_.target(schema, keyword, reference->text, context_.scope);
}

bool Schema::is_impossible_array(const Value& schema) const {
  const std::vector<std::string>& all = options_.impossible_arrays;
  return !all.empty() && std::find(all.begin(), all.end(), document_.pointer_to(schema)) != all.end();
}

Formula Schema::expand_schema(const Value& schema, Type type) {
  if (type == Type::kArray && is_impossible_array(schema)) return kNever;
  std::vector<Formula> all;
  for (std::string_view keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    const Value* target = reference_target(schema, keyword);
    if (target == nullptr) continue;
    all.push_back(expand(child(*target), type));
    if (is_lone_reference(schema)) return all[0];
  }
  if (type == Type::kObject) check_names(schema);
  if (const Value* types = schema.find("type")) {
    Formula allowed = expand_types(*types, document_.draft(schema), type);
    if (allowed == kNever) return kNever;
    all.push_back(allowed);
  }
  if (const Value* values = schema.find("enum")) all.push_back(expand_enum(*values, type));
  if (const Value* value = document_.find(schema, "const")) all.push_back(expand_constant(*value, type));
  add_applicators(schema, type, all);
  switch (type) {
    case Type::kNumber:
      add_number(schema, all);
      break;
    case Type::kString:
      add_string(schema, all);
      break;
    case Type::kArray:
      add_array(schema, all);
      break;
    case Type::kObject:
      add_object(schema, all);
      break;
    default:
      break;
  }
  return all_of(all);
}

Formula Schema::expand_types(const Value& types, int draft, Type type) {
  std::vector<Formula> any;
  auto add = [&](const Value& given) {
    if (given.is_object()) {  // draft 3
      any.push_back(expand(child(given), type));
    } else if (given.text == "any" && draft <= 3) {
      any.push_back(kAlways);
    } else if (is_type(given.text, type)) {
      any.push_back(given.text == "integer" ? integers(draft) : kAlways);
    } else if (std::none_of(std::begin(kAllTypes), std::end(kAllTypes),
                            [&](Type other) { return is_type(given.text, other); })) {
      throw SchemaError(ErrorKind::kMalformed, "unknown type " + given.text, document_.pointer_to(types));
    }
  };
  if (types.is_array()) {
    for (const Value& given : types.items) add(given);
  } else {
    add(types);
  }
  return any_of(any);
}

Formula Schema::expand_constant(const Value& value, Type type) {
  if (type_of(value) != type) return kNever;
  std::vector<Formula> all;
  switch (type) {
    case Type::kNumber:
      return numbers_equal(value);
    case Type::kString:
      return texts_.exact_strings({value.text});
    case Type::kArray:
      all = {min_items(uint32_t(value.items.size())), no(min_items(uint32_t(value.items.size() + 1)))};
      for (uint32_t i = 0; i < value.items.size(); ++i) all.push_back(for_items(i, i + 1, constant(value.items[i])));
      return all_of(all);
    case Type::kObject: {
      std::vector<uint32_t> names;
      for (size_t i = 0; i < value.items.size(); ++i) {
        names.push_back(number_of_name(value.names[i]));
        all.push_back(required(names.back()));
        all.push_back(for_name(names.back(), constant(value.items[i])));
      }
      all.push_back(for_keys(no(keys_named(names)), kNever));
      return all_of(all);
    }
    default:
      return kAlways;
  }
}

Formula Schema::expand_enum(const Value& values, Type type) {
  std::vector<Formula> any;
  std::vector<std::string> strings;
  std::vector<uint32_t> compound;
  size_t bytes_before = listed_.memory_bytes();
  for (const Value& value : values.items) {
    if (type_of(value) != type) continue;
    if (type == Type::kString) {
      strings.push_back(value.text);
    } else if (type == Type::kArray || type == Type::kObject) {
      if (is_spellable(value)) compound.push_back(listed_.number_of(value));
    } else {
      any.push_back(expand_constant(value, type));
    }
  }
  if (!strings.empty()) any.push_back(texts_.exact_strings(std::move(strings)));
  any.push_back(among(std::move(compound), 0));
  budget_.spend((listed_.memory_bytes() - bytes_before) / kBytesPerStep);
  return any_of(any);
}

void Schema::add_applicators(const Value& schema, Type type, std::vector<Formula>& all) {
  auto expanded = [&](const Value& list) {
    std::vector<Formula> formulas;
    for (const Value& each : list.items) formulas.push_back(expand(child(each), type));
    return formulas;
  };
  if (const Value* list = schema.find("allOf")) {
    for (Formula formula : expanded(*list)) all.push_back(formula);
  }
  if (const Value* list = schema.find("anyOf")) all.push_back(any_of(expanded(*list)));
  if (const Value* list = schema.find("oneOf")) all.push_back(exactly_one(*list, type));
  if (const Value* negated = schema.find("not")) {
    all.push_back(in_both_readings({negated}, type, [&](Type of) { return no(expand(child(*negated), of)); }));
  }
  const Value *condition = document_.find(schema, "if"), *then = document_.find(schema, "then"),
              *otherwise = document_.find(schema, "else");
  if (condition != nullptr && (then != nullptr || otherwise != nullptr)) {
    all.push_back(in_both_readings({condition}, type, [&](Type of) {
      Formula holds = expand(child(*condition), of), if_true = kAlways, if_false = kAlways;
      if (then != nullptr) if_true = either(no(holds), expand(child(*then), of));
      if (otherwise != nullptr) if_false = either(holds, expand(child(*otherwise), of));
      return both(if_true, if_false);
    }));
  }
  if (document_.draft(schema) <= 3) {
    if (const Value* extends = schema.find("extends")) {
      if (extends->is_array()) {
        for (Formula formula : expanded(*extends)) all.push_back(formula);
      } else {
        all.push_back(expand(child(*extends), type));
      }
    }
    if (const Value* disallowed = schema.find("disallow")) {
      all.push_back(in_both_readings({&schema}, type, [&](Type of) { return no(expand_types(*disallowed, 3, of)); }));
    }
  }
}

// -- arrays -------------------------------------------------------------------------

bool Schema::has_unique_compounds() {
  for (size_t i = 0; i < unique_items_.size(); ++i) {
    Formula items = unique_items_[i];
    if (expand(items, Type::kArray) != kNever || expand(items, Type::kObject) != kNever) return true;
  }
  return false;
}

Formula Schema::for_items(uint32_t begin, uint32_t end, Formula child) {
  return child == kAlways || begin >= end ? kAlways : formulas_.atom(Op::kForItems, begin, end, child);
}

std::vector<Schema::Items> Schema::own_items(const Value& schema) {
  const Value *items = schema.find("items"), *prefix = document_.find(schema, "prefixItems"), *rest = items;
  if (items != nullptr && items->is_array()) {
    prefix = items;
    rest = schema.find("additionalItems");
  }
  std::vector<Items> found;
  if (prefix != nullptr) {
    for (const Value& each : prefix->items)
      found.push_back({uint32_t(found.size()), uint32_t(found.size()) + 1, child(each)});
  }
  if (rest != nullptr) found.push_back({uint32_t(found.size()), kNoEnd, child(*rest)});
  return found;
}

void Schema::add_array(const Value& schema, std::vector<Formula>& all) {
  const std::vector<Items> own = own_items(schema);
  for (const Items& items : own) all.push_back(for_items(items.begin, items.end, items.child));
  if (const Value* least = schema.find("minItems")) all.push_back(min_items(count_of(*least, schema, "minItems")));
  if (const Value* most = schema.find("maxItems")) {
    all.push_back(no(min_items(count_of(*most, schema, "maxItems") + 1)));
  }
  if (const Value* contains = document_.find(schema, "contains")) {
    const Value *least = document_.find(schema, "minContains"), *most = document_.find(schema, "maxContains");
    uint32_t min = least == nullptr ? 1 : count_of(*least, schema, "minContains");
    auto has = [&](uint32_t count) { return count == 0 ? kAlways : formulas_.atom(Op::kHas, child(*contains), count); };
    all.push_back(has(min));
    if (most != nullptr) {
      uint32_t max = count_of(*most, schema, "maxContains");
      all.push_back(in_both_readings({contains}, Type::kArray, [&](Type) { return no(has(max + 1)); }));
    }
  }
  const Value* unique = schema.find("uniqueItems");
  if (unique != nullptr && unique->kind == ValueKind::kTrue) {
    unique_items_.push_back(own.size() == 1 && own[0].end == kNoEnd ? own[0].child : kAlways);
    all.push_back(formulas_.atom(Op::kUnique));
  }
  if (document_.find(schema, "unevaluatedItems") != nullptr) {
    all.push_back(in_both_readings({&schema}, Type::kArray, [&](Type) { return unevaluated_items(schema); }));
  }
}

}  // namespace structout::json
