// Sets of characters by the names that ECMA-262 has in \p{...}, in Unicode 17.
#pragma once

#include <optional>
#include <string>

#include "regular/code_points.h"

namespace structout::engine {

// What stands between the braces: "Lu", "General_Category=Lu", "Script=Greek" or "sc=Grek",
// "Script_Extensions=Greek" or "scx=Grek", or a binary property such as "Alphabetic" or
// "Alpha".
std::optional<CodePointSet> characters_of_property(const std::string& name);

// Whether a name is that of a script. Alone between the braces it means nothing.
bool is_script(const std::string& name);

}  // namespace structout::engine
