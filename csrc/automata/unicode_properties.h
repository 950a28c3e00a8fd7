// Sets of characters by the names that ECMA-262 has in \p{...}, in Unicode 17.
#pragma once

#include <optional>
#include <string>

#include "automata/code_points.h"

namespace structout::engine {

// The characters of a property. `name` is the text between the braces: "Lu",
// "General_Category=Lu", "Script=Greek" or "sc=Grek", "Script_Extensions=Greek" or
// "scx=Grek", or a binary property such as "Alphabetic" or "Alpha". Nothing for an unknown
// name.
std::optional<CodePointSet> characters_of_property(const std::string& name);

// True for the name of a script, such as "Greek". Without "Script=" such a name is
// invalid between the braces.
bool is_script(const std::string& name);

}  // namespace structout::engine
