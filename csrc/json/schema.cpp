#include "json/schema.h"

#include <algorithm>

#include "fsm/compile.h"
#include "fsm/number.h"
#include "fsm/regex.h"

namespace structout::json {

namespace {

constexpr size_t kMaxListedKeys = 64;    // a pattern of fewer keys is taken as their names
constexpr size_t kMaxCountedKeys = 256;  // an object of fewer possible keys has at most so many
constexpr uint32_t kLargestCount = 1u << 30;
constexpr uint32_t kNoEnd = UINT32_MAX;
constexpr size_t kMaxExpansions = 512;

constexpr Type kAllTypes[] = {Type::kNull,   Type::kFalse, Type::kTrue,  Type::kNumber,
                              Type::kString, Type::kArray, Type::kObject};

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

Schema::Schema(const std::string& text, const SchemaOptions& options, const fsm::Limits& limits)
    : document_(text),
      options_(options),
      budget_(limits),
      formulas_(budget_),
      texts_(formulas_, budget_, options.allowed_bytes) {}

void Schema::refuse(const Value& schema, std::string_view keyword, const std::string& cause) const {
  throw SchemaError(ErrorKind::kUnsupported, cause, document_.pointer_to(schema) + "/" + std::string(keyword));
}

template <typename Compile>
auto Schema::at(const Value& schema, std::string_view keyword, Compile compile) {
  try {
    return compile();
  } catch (const fsm::PatternError& error) {
    throw SchemaError(error.is_malformed ? ErrorKind::kMalformed : ErrorKind::kUnsupported, error.what(),
                      document_.pointer_to(schema) + "/" + std::string(keyword));
  } catch (fsm::LimitError& error) {
    if (error.place.empty()) error.place = document_.pointer_to(schema) + "/" + std::string(keyword);
    throw;
  }
}

// -- children -----------------------------------------------------------------------

Formula Schema::child(const Value& schema) {
  if (schema.kind == ValueKind::kTrue || (schema.is_object() && schema.items.empty())) return kAlways;
  if (schema.kind == ValueKind::kFalse) return kNever;
  if (!schema.is_object()) {
    throw SchemaError(ErrorKind::kMalformed, "a schema must be an object or a boolean", document_.pointer_to(schema));
  }
  auto [found, is_new] = schema_numbers_.try_emplace(&schema, uint32_t(schemas_.size()));
  if (is_new) schemas_.push_back(&schema);
  return formulas_.atom(Op::kSchema, found->second);
}

Formula Schema::constant(const Value& value) {
  auto [found, is_new] = constant_numbers_.try_emplace(&value, uint32_t(constants_.size()));
  if (is_new) constants_.push_back(&value);
  return formulas_.atom(Op::kConstant, found->second);
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
    case Op::kCanonicalNumber:
      if (type == Type::kNumber) {
        expanded = texts_.language(TextKind::kNumber, "canonical number", [&] {
          return fsm::compile_regex("0|-?(?:[1-9][0-9]*(?:\\.[0-9]*[1-9])?|0\\.[0-9]*[1-9])", budget_.limits);
        });
      }
      break;
    default: {
      const Value& schema = *schemas_[node.a];
      std::pair<Formula, Type> entry(child, type);
      if (std::find(being_expanded_.begin(), being_expanded_.end(), entry) != being_expanded_.end()) {
        throw SchemaError(ErrorKind::kMalformed, "the schema refers to itself for the same value",
                          document_.pointer_to(schema));
      }
      if (being_expanded_.size() >= kMaxExpansions) {
        throw fsm::LimitError("schema_references", being_expanded_.size() + 1, kMaxExpansions);
      }
      being_expanded_.push_back(entry);
      try {
        expanded = expand_schema(schema, type);
        being_expanded_.pop_back();
      } catch (fsm::LimitError& error) {
        being_expanded_.pop_back();
        if (error.place.empty()) error.place = document_.pointer_to(schema);
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

std::vector<Formula> Schema::children() {
  std::vector<Formula> children;
  for (uint32_t i = 0; i < schemas_.size(); ++i) children.push_back(formulas_.atom(Op::kSchema, i));
  return children;
}

std::string Schema::place_of(Formula child) {
  for (Formula atom : formulas_.atoms(child)) {
    if (formulas_.op(atom) == Op::kSchema) return document_.pointer_to(*schemas_[formulas_[atom].a]);
  }
  return "";
}

void Schema::expand_all() {
  root();
  for (size_t schema = 0, constant = 0; schema < schemas_.size() || constant < constants_.size();) {
    bool is_schema = schema < schemas_.size();
    Formula atom = formulas_.atom(is_schema ? Op::kSchema : Op::kConstant, uint32_t(is_schema ? schema++ : constant++));
    for (Type type : kAllTypes) expand(atom, type);
  }
}

bool Schema::is_lone_reference(const Value& schema) const {
  const Value* reference = schema.find("$ref");
  return document_.draft() <= 7 && reference != nullptr && reference->is_string();
}

const Value* Schema::reference_target(const Value& schema, std::string_view keyword) {
  const Value* reference = document_.find(schema, keyword);
  if (reference == nullptr || !reference->is_string()) return nullptr;
  return &document_.target(schema, reference->text, keyword != "$ref");
}

Formula Schema::expand_schema(const Value& schema, Type type) {
  std::vector<Formula> all;
  for (std::string_view keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    const Value* target = reference_target(schema, keyword);
    if (target == nullptr) continue;
    all.push_back(expand(child(*target), type));
    if (is_lone_reference(schema)) return all[0];
  }
  if (const Value* types = schema.find("type")) {
    Formula allowed = expand_types(*types, type);
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

Formula Schema::expand_types(const Value& types, Type type) {
  std::vector<Formula> any;
  auto add = [&](const Value& given) {
    if (given.is_object()) {  // draft 3
      any.push_back(expand(child(given), type));
    } else if (given.text == "any" && document_.draft() <= 3) {
      any.push_back(kAlways);
    } else if (is_type(given.text, type)) {
      any.push_back(given.text == "integer" ? integers() : kAlways);
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
  for (const Value& value : values.items) {
    if (type_of(value) != type) continue;
    if (type == Type::kString) {
      strings.push_back(value.text);
    } else {
      any.push_back(expand_constant(value, type));
    }
  }
  if (!strings.empty()) any.push_back(texts_.exact_strings(std::move(strings)));
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
  if (const Value* negated = schema.find("not")) all.push_back(no(expand(child(*negated), type)));
  const Value *condition = document_.find(schema, "if"), *then = document_.find(schema, "then"),
              *otherwise = document_.find(schema, "else");
  if (condition != nullptr && (then != nullptr || otherwise != nullptr)) {
    Formula holds = expand(child(*condition), type);
    if (then != nullptr) all.push_back(either(no(holds), expand(child(*then), type)));
    if (otherwise != nullptr) all.push_back(either(holds, expand(child(*otherwise), type)));
  }
  if (document_.draft() <= 3) {
    if (const Value* extends = schema.find("extends")) {
      if (extends->is_array()) {
        for (Formula formula : expanded(*extends)) all.push_back(formula);
      } else {
        all.push_back(expand(child(*extends), type));
      }
    }
    if (const Value* disallowed = schema.find("disallow")) all.push_back(no(expand_types(*disallowed, type)));
  }
}

// -- numbers and strings ------------------------------------------------------------

Formula Schema::integers() {
  bool allows_fraction = document_.draft() > 4;
  return texts_.language(TextKind::kNumber, allows_fraction ? "integer" : "integer without a point",
                         [&] { return fsm::integers(allows_fraction); });
}

Formula Schema::numbers_equal(const Value& value) {
  fsm::Decimal decimal(value.text);
  return texts_.language(TextKind::kNumber, "= " + decimal.text(), [&] { return fsm::numbers_equal(decimal); });
}

Formula Schema::number_bound(const Value& bound, bool is_lower, bool is_exclusive) {
  if (!bound.is_number()) return kAlways;
  fsm::Decimal decimal(bound.text);
  std::string name = std::string(is_lower ? ">" : "<") + (is_exclusive ? " " : "= ") + decimal.text();
  return texts_.language(TextKind::kNumber, name, [&] {
    return is_lower ? fsm::numbers_from(decimal, is_exclusive) : fsm::numbers_to(decimal, is_exclusive);
  });
}

void Schema::add_number(const Value& schema, std::vector<Formula>& all) {
  for (bool is_lower : {true, false}) {
    const Value* inclusive = schema.find(is_lower ? "minimum" : "maximum");
    const Value* exclusive = schema.find(is_lower ? "exclusiveMinimum" : "exclusiveMaximum");
    bool is_flag = exclusive != nullptr && exclusive->is_bool();  // until draft 4
    if (inclusive != nullptr) {
      all.push_back(number_bound(*inclusive, is_lower, is_flag && exclusive->kind == ValueKind::kTrue));
    }
    if (exclusive != nullptr && !is_flag) all.push_back(number_bound(*exclusive, is_lower, true));
  }
  const Value* step = schema.find("multipleOf");
  std::string_view keyword = "multipleOf";
  if (step == nullptr && document_.draft() <= 3) {
    step = schema.find("divisibleBy");
    keyword = "divisibleBy";
  }
  if (step == nullptr || !step->is_number()) return;
  fsm::Decimal decimal(step->text);
  if (decimal.is_zero() || decimal.is_negative()) {
    throw SchemaError(ErrorKind::kMalformed, "must be above 0",
                      document_.pointer_to(schema) + "/" + std::string(keyword));
  }
  all.push_back(texts_.language(TextKind::kNumber, "multiple of " + decimal.text(),
                                [&] { return fsm::multiples_of(decimal, budget_); }));
}

uint32_t Schema::count_of(const Value& count, const Value& schema, std::string_view keyword) {
  auto fail = [&](const std::string& message) {
    throw SchemaError(ErrorKind::kMalformed, message, document_.pointer_to(schema) + "/" + std::string(keyword));
  };
  if (!count.is_number()) fail("must be an integer");
  fsm::Decimal decimal(count.text);
  if (!decimal.is_integer()) fail("must be an integer, got " + count.text);
  if (decimal.is_negative()) return 0;
  std::string digits = decimal.whole_digits();
  return digits.size() > 9 ? kLargestCount : std::min(kLargestCount, uint32_t(std::stoul(digits)));
}

void Schema::add_string(const Value& schema, std::vector<Formula>& all) {
  if (const Value* pattern = schema.find("pattern")) {
    all.push_back(at(schema, "pattern", [&] { return texts_.strings_matching(pattern->text); }));
  }
  if (const Value* least = schema.find("minLength")) {
    all.push_back(texts_.min_length(count_of(*least, schema, "minLength")));
  }
  if (const Value* most = schema.find("maxLength")) {
    all.push_back(no(texts_.min_length(count_of(*most, schema, "maxLength") + 1)));
  }
  const Value* format = schema.find("format");
  if (format == nullptr || !format->is_string()) return;
  auto known = options_.formats.find(format->text);
  if (known != options_.formats.end()) {
    all.push_back(texts_.strings_matching("^(?:" + known->second + ")$"));
  } else if (std::find(options_.refused_formats.begin(), options_.refused_formats.end(), format->text) !=
             options_.refused_formats.end()) {
    refuse(schema, "format", "the format " + format->text + " is not enforced");
  } else {
    annotations_.push_back(document_.pointer_to(schema) + "/format");
  }
}

// -- arrays -------------------------------------------------------------------------

Formula Schema::for_items(uint32_t begin, uint32_t end, Formula child) {
  return child == kAlways || begin >= end ? kAlways : formulas_.atom(Op::kForItems, begin, end, child);
}

void Schema::add_array(const Value& schema, std::vector<Formula>& all) {
  const Value *items = schema.find("items"), *prefix = document_.find(schema, "prefixItems"), *rest = items;
  if (items != nullptr && items->is_array()) {
    prefix = items;
    rest = schema.find("additionalItems");
  }
  uint32_t num_prefixed = 0;
  if (prefix != nullptr) {
    for (const Value& each : prefix->items) {
      all.push_back(for_items(num_prefixed, num_prefixed + 1, child(each)));
      ++num_prefixed;
    }
  }
  if (rest != nullptr) all.push_back(for_items(num_prefixed, kNoEnd, child(*rest)));
  if (const Value* least = schema.find("minItems")) all.push_back(min_items(count_of(*least, schema, "minItems")));
  if (const Value* most = schema.find("maxItems")) {
    all.push_back(no(min_items(count_of(*most, schema, "maxItems") + 1)));
  }
  if (const Value* contains = document_.find(schema, "contains")) {
    const Value *least = document_.find(schema, "minContains"), *most = document_.find(schema, "maxContains");
    uint32_t min = least == nullptr ? 1 : count_of(*least, schema, "minContains");
    Formula item = child(*contains);
    auto has = [&](uint32_t count) { return count == 0 ? kAlways : formulas_.atom(Op::kHas, item, count); };
    all.push_back(has(min));
    if (most != nullptr) all.push_back(no(has(count_of(*most, schema, "maxContains") + 1)));
  }
  const Value* unique = schema.find("uniqueItems");
  if (unique != nullptr && unique->kind == ValueKind::kTrue) all.push_back(formulas_.atom(Op::kUnique));
  if (document_.find(schema, "unevaluatedItems") != nullptr) all.push_back(unevaluated_items(schema));
}

// -- objects ------------------------------------------------------------------------

uint32_t Schema::number_of_name(const std::string& name) {
  auto [found, is_new] = name_numbers_.try_emplace(name, uint32_t(names_.size()));
  if (is_new) names_.push_back({name, fsm::spelled_canonically(name)});
  return found->second;
}

Formula Schema::keys_named(const std::vector<uint32_t>& names) {
  std::vector<std::string> texts;
  for (uint32_t number : names) texts.push_back(name(number));
  return texts.empty() ? kNever : texts_.exact_strings(std::move(texts));
}

Formula Schema::keys_matching(const std::string& pattern, const Value& schema, const std::string& place) {
  return at(schema, place, [&] { return texts_.strings_matching(pattern); });
}

Formula Schema::for_keys(Formula keys, Formula child) {
  if (child == kAlways || keys == kNever) return kAlways;
  std::optional<std::vector<std::string>> few = texts_.all_texts(TextKind::kString, keys, kMaxListedKeys);
  if (!few) return formulas_.atom(Op::kForKeys, keys, child);
  std::vector<Formula> all;
  for (const std::string& spelled : *few) {
    std::string name = parse_value("\"" + spelled + "\"").text;
    all.push_back(for_name(number_of_name(name), child));
  }
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

// Keys never repeat, so an object has at most as many as there are possible ones.
void Schema::bound_keys(Formula keys, std::vector<Formula>& all) {
  std::optional<std::vector<std::string>> few = texts_.all_texts(TextKind::kString, keys, kMaxCountedKeys);
  if (few) all.push_back(no(min_keys(uint32_t(few->size()) + 1)));
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
    std::optional<std::vector<std::string>> few = texts_.all_texts(TextKind::kString, allowed, kMaxListedKeys);
    std::vector<uint32_t>& outside = names_outside_[no(allowed)];
    if (few) {
      for (const std::string& spelled : *few) {
        outside.push_back(number_of_name(parse_value("\"" + spelled + "\"").text));
      }
    }
    all.push_back(for_keys(no(allowed), kNever));
    if (!few) bound_keys(allowed, all);
  }
  for (std::string_view keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Value* dependencies = document_.find(schema, keyword);
    if (dependencies == nullptr) continue;
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
  if (document_.find(schema, "unevaluatedProperties") != nullptr) all.push_back(unevaluated_keys(schema));
}

bool Schema::describes(Formula keys, uint32_t name) {
  auto [found, is_new] = describes_.try_emplace(uint64_t(keys) << 32 | name, false);
  if (is_new) found->second = texts_.matches(TextKind::kString, keys, names_[name].spelled);
  return found->second;
}

const std::vector<uint32_t>& Schema::names_in(Formula object) {
  auto found = names_in_.find(object);
  if (found != names_in_.end()) return found->second;
  std::vector<uint32_t> names;
  for (Formula atom : formulas_.atoms(object)) {
    const FormulaNode& node = formulas_[atom];
    if (node.op == Op::kRequired || node.op == Op::kForName) names.push_back(node.a);
    if (node.op != Op::kForKeys) continue;
    auto outside = names_outside_.find(node.a);
    if (outside != names_outside_.end()) names.insert(names.end(), outside->second.begin(), outside->second.end());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names_in_.emplace(object, std::move(names)).first->second;
}

std::vector<uint32_t> Schema::declared_names(const std::vector<Formula>& children) {
  std::vector<uint32_t> names;
  std::unordered_map<uint32_t, bool> is_listed;
  std::unordered_map<const Value*, bool> is_seen;
  auto add = [&](const std::string& name) {
    uint32_t number = number_of_name(name);
    if (is_listed.try_emplace(number, true).second) names.push_back(number);
  };
  std::function<void(const Value&)> visit = [&](const Value& schema) {
    if (!schema.is_object() || !is_seen.try_emplace(&schema, true).second) return;
    if (is_lone_reference(schema)) {
      visit(*reference_target(schema, "$ref"));
      return;
    }
    if (const Value* properties = schema.find("properties")) {
      for (const std::string& name : properties->names) add(name);
    }
    for (size_t i = 0; i < schema.items.size(); ++i) {
      const std::string& keyword = schema.names[i];
      const Value& value = schema.items[i];
      if (keyword == "$ref" || keyword == "$dynamicRef" || keyword == "$recursiveRef") {
        if (const Value* target = reference_target(schema, keyword)) visit(*target);
      } else if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") {
        for (const Value& each : value.items) visit(each);
      } else if (keyword == "not" || keyword == "if" || keyword == "then" || keyword == "else") {
        visit(value);
      } else if (keyword == "dependencies" || keyword == "dependentSchemas") {
        for (const Value& each : value.items) visit(each);
      }
    }
    for (const char* keyword : {"enum", "const"}) {
      const Value* values = schema.find(keyword);
      if (values == nullptr) continue;
      if (values->is_object()) {
        for (const std::string& name : values->names) add(name);
      }
      for (const Value& value : values->is_array() ? values->items : std::vector<Value>{}) {
        for (const std::string& name : value.names) add(name);
      }
    }
    if (const Value* required = schema.find("required"); required != nullptr && required->is_array()) {
      for (const Value& name : required->items) add(name.text);
    }
  };
  for (Formula child : children) {
    formulas_.visit_literals(child, [&](Formula atom, bool) {
      const FormulaNode& node = formulas_[atom];
      if (node.op == Op::kSchema) visit(*schemas_[node.a]);
      if (node.op == Op::kConstant) {
        for (const std::string& name : constants_[node.a]->names) add(name);
      }
    });
  }
  return names;
}

// -- unevaluated... -----------------------------------------------------------------

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
    items.push_back({condition, 0, uint32_t(given->items.size()), nullptr});
    if (schema.find("additionalItems") != nullptr) items.push_back({condition, 0, kNoEnd, nullptr});
  } else if (given != nullptr) {
    items.push_back({condition, 0, kNoEnd, nullptr});
  } else if (prefix != nullptr) {
    items.push_back({condition, 0, uint32_t(prefix->items.size()), nullptr});
  }
  if (!is_top && document_.find(schema, "unevaluatedItems") != nullptr) {
    items.push_back({condition, 0, kNoEnd, nullptr});
  }
  if (const Value* contains = document_.find(schema, "contains"); contains != nullptr && document_.draft() >= 2020) {
    items.push_back({condition, 0, kNoEnd, contains});
  }
}

void Schema::collect_evaluated(const Value& schema, Type type, Formula condition, bool is_top, int depth,
                               std::vector<EvaluatedKeys>& keys, std::vector<EvaluatedItems>& items) {
  if (!schema.is_object()) return;
  if (depth > kMaxReferences) {
    throw fsm::LimitError("schema_references", uint64_t(depth), kMaxReferences);
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
  for (size_t i = 0; i < dependent->items.size(); ++i) {
    collect(dependent->items[i], required(number_of_name(dependent->names[i])));
  }
}

// A key that no other keyword has evaluated satisfies the schema. So for each key and
// each set of keys: it does, or one of the conditions under which it is evaluated holds.
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
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  constexpr size_t kMaxSets = 6;
  if (sets.size() > kMaxSets) {
    throw fsm::LimitError("unevaluated_key_sets", sets.size(), kMaxSets);
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

Formula Schema::unevaluated_items(const Value& schema) {
  Formula value = child(*document_.find(schema, "unevaluatedItems"));
  if (value == kAlways) return kAlways;
  std::vector<EvaluatedKeys> unused;
  std::vector<EvaluatedItems> evaluated;
  collect_evaluated(schema, Type::kArray, kAlways, true, 0, unused, evaluated);
  uint32_t num_single = 0;  // items before the last bound
  for (const EvaluatedItems& each : evaluated) {
    if (each.contains != nullptr) {
      if (each.condition != kAlways) refuse(schema, "unevaluatedItems", "contains under a condition is not supported");
      value = either(value, child(*each.contains));
    } else if (each.end != kNoEnd) {
      num_single = std::max(num_single, each.end);
    }
  }
  std::vector<Formula> all;
  for (uint32_t i = 0; i <= num_single; ++i) {
    std::vector<Formula> any = {for_items(i, i == num_single ? kNoEnd : i + 1, value)};
    for (const EvaluatedItems& each : evaluated) {
      if (each.contains == nullptr && each.begin <= i && i < each.end) any.push_back(each.condition);
    }
    all.push_back(any_of(any));
  }
  return all_of(all);
}

}  // namespace structout::json
