// The values that an item of an array may have, where items differ and values are few.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace structout::json {

class Machine;
using State = uint32_t;

struct ItemValue {
  std::string text;       // one that the machine accepts, without spaces
  std::string canonical;  // the same for equal values
};

// Null if there are many.
using ItemValues = std::shared_ptr<const std::vector<ItemValue>>;

// The values that may be read from a state without a stack, with numbers in their
// shortest form.
ItemValues enumerated_values(Machine& machine, State start);

size_t num_different(const std::vector<ItemValue>& values);

// A JSON text that is the same for equal values.
std::string canonical(const std::string& value);

// Leaves the spaces out that are not in strings. The text may be the begin of a value.
std::string without_spaces(const std::string& text);

}  // namespace structout::json
