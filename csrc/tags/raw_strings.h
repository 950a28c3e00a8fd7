// String values without quotes and escapes, as arguments between tags have them.
#pragma once

#include "base/limits.h"
#include "regular/automaton.h"

namespace structout::tags {

// The values of JSON strings that are spelled canonically (Spelling::kJsonCanonical), in
// UTF-8. Texts that are no such string have no value.
engine::Automaton raw_strings(const engine::Automaton& json_strings, engine::Budget& budget);

}  // namespace structout::tags
