// Canonical texts of JSON values: equal values have the same one.
#pragma once

#include <string>

namespace structout::json {

struct Value;

// The canonical text: numbers without an exponent, keys sorted, and a comma after each
// member or item, so it is not JSON. {"b": [1.0], "a": 2e0} gives {"a":2,"b":[1,],}.
std::string canonical(const Value& value);

// The JSON text of a value that with_canonical_texts() returned, with its keys in their own
// order.
std::string written(const Value& value);

// The value with its numbers, strings and names spelled as canonical() spells them, without
// quotes.
Value with_canonical_texts(Value value);

// True if a canonical text belongs to an array or object, not to a scalar.
inline bool is_compound(const std::string& canonical) { return canonical[0] == '[' || canonical[0] == '{'; }

// Calls visit(text) with the canonical text of each string in a value, quotes included. The
// names of keys are not visited.
template <typename Value, typename Visit>
void visit_strings(const Value& value, Visit&& visit) {
  if (value.is_string()) visit(canonical(value));
  for (const auto& item : value.items) visit_strings(item, visit);
}

}  // namespace structout::json
