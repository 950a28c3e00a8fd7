#include "json/document/keyword_types.h"

#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>

#include "json/document/errors.h"
#include "json/document/uri.h"

namespace structout::json {

namespace {

// JSON types, one bit each.
constexpr uint8_t kObject = 1, kBoolean = 2, kArray = 4, kNumber = 8, kString = 16, kNull = 32;
constexpr uint8_t kSchema = kObject | kBoolean, kAny = 63;

struct Types {
  uint8_t value = kAny;
  uint8_t elements = kAny;  // of an array, or of an object that is not a schema
  uint8_t listed = kAny;    // of an array among the elements
};

const std::unordered_map<std::string_view, Types> kTypes = [] {
  std::unordered_map<std::string_view, Types> all;
  auto add = [&](std::initializer_list<std::string_view> keywords, Types types) {
    for (std::string_view keyword : keywords) all[keyword] = types;
  };
  add({"additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then",
       "unevaluatedItems", "unevaluatedProperties"},
      {kSchema});
  add({"allOf", "anyOf", "oneOf", "prefixItems"}, {kArray, kSchema});
  add({"items"}, {kSchema | kArray, kSchema});
  add({"dependentSchemas", "patternProperties", "properties"}, {kObject, kSchema});
  add({"$defs", "definitions"}, {kObject});
  add({"dependencies"}, {kObject, kSchema | kArray | kString, kString});  // a string: of draft 3
  add({"dependentRequired"}, {kObject, kArray, kString});
  add({"maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
       "minProperties", "minimum", "multipleOf"},
      {kNumber});
  add({"exclusiveMaximum", "exclusiveMinimum"}, {kNumber | kBoolean});
  add({"$dynamicRef", "$recursiveRef", "$ref", "$schema", "format", "pattern"}, {kString});
  add({"enum"}, {kArray});
  add({"required"}, {kArray | kBoolean, kString});
  add({"type"}, {kString | kArray, kString | kObject});
  add({"uniqueItems"}, {kBoolean});
  return all;
}();

uint8_t type_bit_of(const Value& value) {
  switch (value.kind) {
    case ValueKind::kNull:
      return kNull;
    case ValueKind::kFalse:
    case ValueKind::kTrue:
      return kBoolean;
    case ValueKind::kNumber:
      return kNumber;
    case ValueKind::kString:
      return kString;
    case ValueKind::kArray:
      return kArray;
    default:
      return kObject;
  }
}

std::string names_of(uint8_t types) {
  static constexpr std::string_view kNames[] = {"object", "boolean", "array", "number", "string", "null"};
  std::string names;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if ((types >> i & 1) != 0) names += (names.empty() ? "" : " or ") + std::string(kNames[i]);
  }
  return names;
}

}  // namespace

void check_keyword_types(const Document& document, const Value& schema) {
  auto check = [&](const Value& value, uint8_t types, const std::string& pointer) {
    uint8_t type = type_bit_of(value);
    if ((type & types) != 0) return;
    throw SchemaError(ErrorKind::kMalformed, "must be " + names_of(types) + ", got " + names_of(type),
                      document.pointer_to(schema) + "/" + pointer);
  };
  if (document.draft(schema) <= 7 && schema.find("$ref") != nullptr) return;  // other keywords have no effect beside it
  for (size_t i = 0; i < schema.items.size(); ++i) {
    auto found = kTypes.find(schema.names[i]);
    if (found == kTypes.end() || document.find(schema, schema.names[i]) == nullptr) continue;
    const Value& value = schema.items[i];
    const Types types = found->second;
    check(value, types.value, schema.names[i]);
    bool has_elements = value.is_array() || (value.is_object() && (types.value & kBoolean) == 0);
    for (size_t j = 0; has_elements && j < value.items.size(); ++j) {
      const Value& element = value.items[j];
      std::string name = value.is_array() ? std::to_string(j) : pointer_part(value.names[j]);
      std::string pointer = schema.names[i] + "/" + name;
      check(element, types.elements, pointer);
      for (size_t k = 0; element.is_array() && k < element.items.size(); ++k) {
        check(element.items[k], types.listed, pointer + "/" + std::to_string(k));
      }
    }
  }
}

}  // namespace structout::json
