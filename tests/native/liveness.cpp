// Unit tests of json/liveness.h: which schemas have values, and which values they have.
// Argument: a file of schemas, one a line, each after "1 " if it has a value, else "0 ".
#include "json/liveness.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "expect.h"

using namespace structout;
using json::Formula;
using json::Liveness;
using json::Schema;

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

}  // namespace

int main(int, char** arguments) {
  test_schemas_of_the_corpus_have_a_value_or_none(arguments[1]);
  test_all_values_are_found_where_they_are_few();
  test_no_list_is_made_of_many_values_and_of_arrays_and_objects();
  test_compounds_are_found_where_a_schema_has_some();
  test_schema_that_only_refers_to_itself_has_no_value_whenever_asked();
  return 0;
}
