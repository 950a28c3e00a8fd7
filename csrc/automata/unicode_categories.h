// Sets of characters by their general category in Unicode 18.
#pragma once

#include <optional>
#include <string>

#include "automata/code_points.h"

namespace structout::engine {

// The characters of a category, such as "Lu", "L" or "Uppercase_Letter"; also of "Any",
// "ASCII" and "Assigned". Nothing for an unknown name.
std::optional<CodePointSet> characters_of_category(const std::string& name);

}  // namespace structout::engine
