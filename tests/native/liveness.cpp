// Unit tests of json/satisfiability/liveness.h: which schemas have values, and which values they have; and
// random schemas of arrays and objects, against all of those that they may allow.
// Argument: a file of schemas, one a line, each after "1 " if it has a value, else "0 ".
#include "json/satisfiability/liveness.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "expect.h"

using namespace structout;
using json::Formula;
using json::FormulaNode;
using json::Formulas;
using json::Liveness;
using json::Op;
using json::Schema;
using json::Type;

namespace {

struct Tester {
  Schema schema;
  Liveness liveness{schema};

  explicit Tester(const std::string& text) : schema(text, json::SchemaOptions(), without_clock()) {}

  static engine::Limits without_clock() {
    engine::Limits limits;
    limits.seconds = 1e9;
    return limits;
  }

  bool has_value() {
    try {
      return liveness.is_satisfiable(schema.root());
    } catch (const json::SchemaError& error) {
      EXPECT(error.kind == json::ErrorKind::kImpossible);
      return false;
    }
  }

  // All values, sorted; nothing if there are many.
  std::vector<std::string> values() {
    Liveness::Values found = liveness.all_values(schema.root());
    EXPECT(found != nullptr);
    std::vector<std::string> sorted = *found;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
};

void test_schemas_of_the_corpus_have_a_value_or_none(const char* path) {
  std::ifstream file(path);
  size_t counts[2] = {0, 0};
  for (std::string line; std::getline(file, line);) {
    bool has_value = line[0] == '1';
    ++counts[has_value];
    if (Tester(line.substr(2)).has_value() == has_value) continue;
    std::fprintf(stderr, "expected has_value() == %d: %s\n", has_value, line.c_str() + 2);
    std::exit(1);
  }
  EXPECT(counts[0] > 20 && counts[1] > 20);
}

void test_all_values_are_found_where_they_are_few() {
  using Texts = std::vector<std::string>;
  EXPECT((Tester(R"({"enum": [1, "a", null, true]})").values() == Texts{"\"a\"", "1", "null", "true"}));
  EXPECT((Tester(R"({"type": "boolean"})").values() == Texts{"false", "true"}));
  EXPECT((Tester(R"({"type": "integer", "minimum": 8, "maximum": 10})").values() == Texts{"10", "8", "9"}));
  EXPECT((Tester(R"({"enum": [1, 2, 3], "not": {"const": 2}})").values() == Texts{"1", "3"}));
  EXPECT((Tester(R"({"type": "string", "pattern": "^[ab]?$"})").values() == Texts{"\"\"", "\"a\"", "\"b\""}));
}

void test_no_list_is_made_of_many_values_and_of_arrays_and_objects() {
  for (const char* text : {R"({"type": "string"})", R"({"type": "integer"})", R"({"enum": [1, [2]]})", "true"}) {
    Tester tester(text);
    EXPECT(tester.liveness.all_values(tester.schema.root()) == nullptr);
  }
}

void test_compounds_are_found_where_a_schema_has_some() {
  for (const char* text : {R"({"enum": [1, []]})", R"({"type": "object"})", "true"}) {
    Tester tester(text);
    EXPECT(tester.liveness.has_compound(tester.schema.root()));
  }
  for (const char* text : {R"({"type": "array", "items": false, "minItems": 1})", R"({"type": ["string", "null"]})",
                           R"({"enum": [1, "a"]})"}) {
    Tester tester(text);
    EXPECT(!tester.liveness.has_compound(tester.schema.root()));
  }
}

void test_schema_that_only_refers_to_itself_has_no_value_whenever_asked() {
  Tester endless(R"({"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]})");
  EXPECT(!endless.has_value());
  EXPECT(!endless.has_value());
}

void test_two_keys_that_are_asked_for_may_be_of_different_kinds() {
  // "b" and "d" are the only keys. "d" can be either of what is asked for, "b" only null.
  EXPECT(Tester(R"({
    "type": "object",
    "patternProperties": {
      "^$|^[^bd]|^[\\s\\S]{2}": false, "^b": {"type": "null"}, "^[bd]": {"type": ["null", "boolean"]}
    },
    "allOf": [
      {"not": {"patternProperties": {"^[bd]": {"type": "null"}}}},
      {"not": {"patternProperties": {"^[bd]": {"type": "boolean"}}}}
    ]
  })")
             .has_value());
}

// -- random schemas -----------------------------------------------------------------

// All values are null, false or true, and all keys a letter.
const std::vector<std::pair<Type, std::string>> kScalars = {
    {Type::kNull, "null"}, {Type::kFalse, "false"}, {Type::kTrue, "true"}};
const std::string kLetters = "abcde";
constexpr size_t kNumLetters = 5;
constexpr size_t kNumNames = 3;  // the first letters; no schema names the others
constexpr size_t kMaxItems = 5;
constexpr int kNumRandom = 1000;

using Array = std::vector<Type>;
using Object = std::array<std::optional<Type>, kNumLetters>;  // by letter

std::mt19937_64 rng(4);
size_t below(size_t bound) { return rng() % bound; }
std::string number_below(size_t bound) { return std::to_string(below(bound)); }

// A text with a part in the place of each %.
std::string filled(const char* text, const std::vector<std::string>& parts) {
  std::string result;
  for (size_t i = 0; *text != 0; ++text) result += *text == '%' ? parts[i++] : std::string(1, *text);
  return result;
}

std::string random_name() { return filled("\"%\"", {{kLetters[below(kNumNames)]}}); }

std::string random_scalars() {
  std::string constant = filled(R"({"const": %})", {kScalars[below(kScalars.size())].second});
  switch (below(8)) {
    case 0:
      return "false";
    case 1:
      return "true";
    case 2:
      return R"({"type": "boolean"})";
    case 3:
    case 4:
      return filled(R"({"not": %})", {constant});
    default:
      return constant;
  }
}

std::string random_array_keyword() {
  switch (below(8)) {
    case 0:
      return filled(R"({"minItems": %})", {number_below(kMaxItems)});
    case 1:
      return filled(R"({"maxItems": %})", {number_below(kMaxItems)});
    case 2:
      return filled(R"({"prefixItems": [%, %]})", {random_scalars(), random_scalars()});
    case 3:
      return filled(R"({"not": {"prefixItems": [%]}})", {random_scalars()});
    case 4:
      return filled(R"({"items": %})", {random_scalars()});
    case 5:
      return filled(R"({"prefixItems": [%], "items": %})", {random_scalars(), random_scalars()});
    case 6:
      return filled(R"({"contains": %, "minContains": %})", {random_scalars(), number_below(3)});
    default:
      return filled(R"({"contains": %, "maxContains": %})", {random_scalars(), number_below(3)});
  }
}

std::string random_key_keyword() {
  static const char* const kPatterns[] = {"^[ab]", "^[b-d]", "^[^c]", "^e", "[ae]"};
  switch (below(4)) {
    case 0:
      return filled(R"({"required": [%]})", {random_name()});
    case 1:
      return filled(R"({"patternProperties": {"%": %}})", {kPatterns[below(std::size(kPatterns))], random_scalars()});
    case 2:
      return filled(R"({"properties": {%: true}, "additionalProperties": %})", {random_name(), random_scalars()});
    default:
      return filled(R"({"properties": {%: %}})", {random_name(), random_scalars()});
  }
}

std::string random_object_keyword() {
  if (below(4) > 0) return random_key_keyword();
  const char* keyword = below(2) == 0 ? R"({"minProperties": %})" : R"({"maxProperties": %})";
  return filled(keyword, {number_below(kNumLetters)});
}

std::string random_schema(const std::function<std::string()>& keyword, int depth) {
  if (depth == 0 || below(4) == 0) return keyword();
  if (below(4) == 0) return filled(R"({"not": %})", {random_schema(keyword, depth - 1)});
  std::string list = random_schema(keyword, depth - 1);
  for (size_t count = below(3); count > 0; --count) list += ", " + random_schema(keyword, depth - 1);
  static const char* const kOperators[] = {"allOf", "anyOf", "oneOf"};
  return filled(R"({"%": [%]})", {kOperators[below(std::size(kOperators))], list});
}

// `depth`: of operators in all but the first schema.
std::string random_list(const std::function<std::string()>& keyword, int depth) {
  std::string list = random_schema(keyword, 2);
  for (size_t count = below(6); count > 0; --count) list += ", " + random_schema(keyword, depth);
  return list;
}

std::string random_array_schema() {
  return filled(
      R"({"items": {"type": ["null", "boolean"]}, "maxItems": %, "minItems": %, "uniqueItems": %, "allOf": [%]})",
      {std::to_string(kMaxItems), number_below(kMaxItems), below(3) == 0 ? "true" : "false",
       random_list(random_array_keyword, 0)});
}

// Beside operands under an operator, that there are no other keys and values.
std::string object_schema(const char* operation, const std::string& operands) {
  return filled(
      R"({"patternProperties": {"": {"type": ["null", "boolean"]}, "^$|^[^a-e]|^[\\s\\S]{2}": false}, "%": [%]})",
      {operation, operands});
}

std::string random_object_schema() { return object_schema("allOf", random_list(random_object_keyword, 1)); }

// -- what formulas mean, value by value ---------------------------------------------

const std::vector<Array>& all_arrays() {
  static const std::vector<Array> all = [] {
    std::vector<Array> arrays = {{}};
    for (size_t i = 0; arrays[i].size() < kMaxItems; ++i) {
      for (const auto& [type, text] : kScalars) {
        arrays.push_back(arrays[i]);
        arrays.back().push_back(type);
      }
    }
    return arrays;
  }();
  return all;
}

const std::vector<Object>& all_objects() {
  static const std::vector<Object> all = [] {
    std::vector<Object> objects = {{}};
    for (size_t letter = 0; letter < kNumLetters; ++letter) {
      for (size_t i = 0, count = objects.size(); i < count; ++i) {
        for (const auto& [type, text] : kScalars) {
          objects.push_back(objects[i]);
          objects.back()[letter] = type;
        }
      }
    }
    return objects;
  }();
  return all;
}

size_t num_keys(const Object& object) {
  return kNumLetters - size_t(std::count(object.begin(), object.end(), std::nullopt));
}

struct Judge : Tester {
  using Tester::Tester;

  Formulas& formulas = schema.formulas();
  std::map<Formula, std::string> described_letters;

  // The value of a named key, if it is there.
  std::optional<Type> value_of(const Object& object, uint32_t name) { return object[kLetters.find(schema.name(name))]; }

  // The letters of the keys that a formula describes.
  const std::string& letters(Formula keys) {
    auto [found, is_new] = described_letters.try_emplace(keys);
    for (size_t i = 0; is_new && i < kNumLetters; ++i) {
      if (schema.texts().matches(json::TextKind::kString, keys, {kLetters[i]})) found->second += kLetters[i];
    }
    return found->second;
  }

  bool holds(Formula child, std::optional<Type> value) {
    return !value || schema.expand(child, *value) == json::kAlways;
  }

  bool is_true(FormulaNode atom, const Object& object) {
    switch (atom.op) {
      case Op::kRequired:
        return value_of(object, atom.a).has_value();
      case Op::kForName:
        return holds(atom.b, value_of(object, atom.a));
      case Op::kForKeys: {
        const std::string& described = letters(atom.a);
        return std::all_of(described.begin(), described.end(),
                           [&](char letter) { return holds(atom.b, object[kLetters.find(letter)]); });
      }
      default:
        EXPECT(atom.op == Op::kMinKeys);
        return num_keys(object) >= atom.a;
    }
  }

  bool is_true(FormulaNode atom, const Array& array) {
    switch (atom.op) {
      case Op::kForItems:
        for (size_t i = atom.a; i < array.size() && i < atom.b; ++i) {
          if (!holds(atom.c, array[i])) return false;
        }
        return true;
      case Op::kHas:
        return std::count_if(array.begin(), array.end(), [&](Type item) { return holds(atom.a, item); }) >= atom.b;
      case Op::kUnique:
        return std::all_of(array.begin(), array.end(),
                           [&](Type item) { return std::count(array.begin(), array.end(), item) == 1; });
      default:
        EXPECT(atom.op == Op::kMinItems);
        return array.size() >= atom.a;
    }
  }

  // The values that satisfy a formula.
  template <typename Value>
  std::vector<Value> among(const std::vector<Value>& all, Formula formula) {
    std::vector<Value> found;
    std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const Value& value) {
      return formulas.evaluate(formula, [&](Formula atom) { return is_true(formulas[atom], value); });
    });
    return found;
  }

  Formula array() { return schema.expand(schema.root(), Type::kArray); }
  Formula object() { return schema.expand(schema.root(), Type::kObject); }
  std::vector<Object> objects(Formula formula) { return among(all_objects(), formula); }

  std::vector<Formula> operands(Formula formula, Op op) const {
    return formulas.op(formula) == op ? formulas.operands(formula) : std::vector<Formula>{formula};
  }
};

// The answer to a question. Asked again it is known, and takes no steps.
template <typename Ask>
bool asked_twice(Judge& judge, const Ask& ask) {
  bool answer = ask();
  const uint64_t steps = judge.schema.budget().total();
  EXPECT(ask() == answer);
  EXPECT(judge.schema.budget().total() == steps);
  return answer;
}

void test_array_is_live_if_some_array_satisfies_its_formula() {
  size_t counts[2] = {0, 0};
  for (int i = 0; i < kNumRandom; ++i) {
    Judge judge(random_array_schema());
    Formula formula = judge.array();
    bool is_live = asked_twice(judge, [&] { return judge.liveness.is_array_live(formula); });
    EXPECT(is_live == !judge.among(all_arrays(), formula).empty());
    ++counts[is_live];
  }
  EXPECT(counts[0] > 100 && counts[1] > 100);
}

void test_array_of_different_items_is_live_if_some_array_of_unused_ones_is() {
  size_t counts[2] = {0, 0};
  for (int i = 0; i < kNumRandom; ++i) {
    Judge judge(random_array_schema());
    Formula formula = judge.formulas.conjunction({judge.formulas.atom(Op::kUnique), judge.array()});
    const auto& [used_type, used_text] = kScalars[below(kScalars.size())];
    std::vector<Array> all = judge.among(all_arrays(), formula);
    bool has_some = std::any_of(all.begin(), all.end(), [type = used_type](const Array& array) {
      return std::find(array.begin(), array.end(), type) == array.end();
    });
    EXPECT(judge.liveness.is_array_live(formula, json::TextSet().with(used_text)) == has_some);
    ++counts[has_some];
  }
  EXPECT(counts[0] > 100 && counts[1] > 100);
}

// The names that a formula mentions, in a random order.
json::KeyOrder random_order(Judge& judge, Formula object) {
  json::KeyOrder order;
  order.names = judge.schema.names_in(object);
  std::shuffle(order.names.begin(), order.names.end(), rng);
  for (uint32_t i = 0; i < order.names.size(); ++i) order.positions[order.names[i]] = i;
  return order;
}

bool has_past_key(Judge& judge, const Object& object, const json::KeyOrder& order, const json::PastKeys& past) {
  for (size_t i = 0; i < past.size(); ++i) {
    if (past[i] && judge.value_of(object, order.names[i])) return true;
  }
  return false;
}

void test_object_is_live_if_some_object_without_past_keys_satisfies_its_formula() {
  size_t counts[2] = {0, 0};
  for (int i = 0; i < kNumRandom; ++i) {
    Judge judge(random_object_schema());
    Formula formula = judge.object();
    const std::vector<Object> all = judge.objects(formula);
    bool is_live = asked_twice(judge, [&] { return judge.liveness.is_object_live(formula, {}, {}); });
    EXPECT(is_live == !all.empty());
    const json::KeyOrder order = random_order(judge, formula);
    for (int j = 0; j < 4; ++j) {
      json::PastKeys past(order.names.size());
      for (size_t k = 0; k < past.size(); ++k) past[k] = below(2) == 0;
      is_live = asked_twice(judge, [&] { return judge.liveness.is_object_live(formula, order, past); });
      EXPECT(is_live == std::any_of(all.begin(), all.end(),
                                    [&](const Object& object) { return !has_past_key(judge, object, order, past); }));
      ++counts[is_live];
    }
  }
  EXPECT(counts[0] > 100 && counts[1] > 100);
}

void test_formula_with_key_bounds_is_equal() {
  for (int i = 0; i < kNumRandom; ++i) {
    Judge judge(random_object_schema());
    Formula formula = judge.object();
    EXPECT(judge.objects(judge.liveness.with_key_bounds(formula)) == judge.objects(formula));
  }
}

// How many keys there can be, by what a branch says itself.
std::optional<size_t> key_bound(Judge& judge, Formula branch) {
  std::optional<size_t> bound;
  for (Formula part : judge.operands(branch, Op::kAnd)) {
    if (judge.formulas.op(part) != Op::kNot) continue;
    const FormulaNode atom = judge.formulas[judge.formulas[part].a];
    if (atom.op == Op::kMinKeys) bound = std::min(bound.value_or(SIZE_MAX), size_t(atom.a - 1));
  }
  return bound;
}

size_t largest_size(const std::vector<Object>& objects) {
  size_t largest = 0;
  for (const Object& object : objects) largest = std::max(largest, num_keys(object));
  return largest;
}

void test_bound_of_a_branch_is_the_size_of_its_largest_object() {
  auto branch = [] {
    return filled(R"({"minProperties": 2, "allOf": [%, %]})", {random_key_keyword(), random_key_keyword()});
  };
  size_t num_bounds = 0;
  for (int i = 0; i < kNumRandom; ++i) {
    Judge judge(object_schema("anyOf", filled("%, %", {branch(), branch()})));
    Formula bounded = judge.liveness.with_key_bounds(judge.object());
    for (Formula part : judge.operands(bounded, Op::kAnd)) {
      if (judge.formulas.op(part) != Op::kOr) continue;
      for (Formula each : judge.operands(part, Op::kOr)) {
        const std::vector<Object> objects = judge.objects(judge.formulas.conjunction({bounded, each}));
        if (objects.empty()) continue;
        EXPECT(key_bound(judge, each) == largest_size(objects));
        ++num_bounds;
      }
    }
  }
  EXPECT(num_bounds > 100);
}

}  // namespace

int main(int, char** arguments) {
  test_schemas_of_the_corpus_have_a_value_or_none(arguments[1]);
  test_all_values_are_found_where_they_are_few();
  test_no_list_is_made_of_many_values_and_of_arrays_and_objects();
  test_compounds_are_found_where_a_schema_has_some();
  test_schema_that_only_refers_to_itself_has_no_value_whenever_asked();
  test_two_keys_that_are_asked_for_may_be_of_different_kinds();
  test_array_is_live_if_some_array_satisfies_its_formula();
  test_array_of_different_items_is_live_if_some_array_of_unused_ones_is();
  test_object_is_live_if_some_object_without_past_keys_satisfies_its_formula();
  test_formula_with_key_bounds_is_equal();
  test_bound_of_a_branch_is_the_size_of_its_largest_object();
  return 0;
}
