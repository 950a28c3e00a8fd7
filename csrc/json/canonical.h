// One text for equal values.
#pragma once

#include <string>

namespace structout::json {

struct Value;

std::string canonical(const Value& value);

// The JSON text of a value that has canonical texts, with its keys in their order.
std::string written(const Value& value);

// The value with texts and names as canonical() writes them, without quotes.
Value with_canonical_texts(Value value);

// Whether a canonical text is that of an array or object.
inline bool is_compound(const std::string& canonical) { return canonical[0] == '[' || canonical[0] == '{'; }

// Calls visit(text) for each string in a value, with quotes.
template <typename Value, typename Visit>
void visit_strings(const Value& value, Visit&& visit) {
  if (value.is_string()) visit(canonical(value));
  for (const auto& item : value.items) visit_strings(item, visit);
}

}  // namespace structout::json
