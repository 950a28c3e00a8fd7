// JSON values, with numbers as their text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace structout::json {

constexpr int kMaxNestedValues = 512;  // of values inside each other

enum class ValueKind : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

struct Value {
  ValueKind kind = ValueKind::kNull;
  std::string text;                // of a number as written, of a string in UTF-8
  std::vector<Value> items;        // of an array, or the values of an object
  std::vector<std::string> names;  // of an object, one for each item, in the order of the text
  std::vector<uint32_t> by_name;   // indices of names in increasing order

  bool is_object() const { return kind == ValueKind::kObject; }
  bool is_array() const { return kind == ValueKind::kArray; }
  bool is_string() const { return kind == ValueKind::kString; }
  bool is_bool() const { return kind == ValueKind::kTrue || kind == ValueKind::kFalse; }
  bool is_number() const { return kind == ValueKind::kNumber; }

  // Compares members in their order, and numbers as texts: 1 and 1.0 differ.
  bool operator==(const Value& other) const {
    return kind == other.kind && text == other.text && names == other.names && items == other.items;
  }

  // The value of a member, or null.
  const Value* find(std::string_view name) const;
};

// Removes the members of an object whose names are among these.
void remove_members(Value& object, const std::vector<std::string>& names);

// Throws SchemaError for what is no JSON text. If a name repeats, its last value counts.
Value parse_value(const std::string& text);

}  // namespace structout::json
