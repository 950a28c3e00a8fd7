// String values without quotes and escapes, as arguments between tags have them.
#pragma once

#include "automata/automaton.h"
#include "base/limits.h"

namespace structout::tags {

// The values, in UTF-8, of the JSON strings that `json_strings` accepts in canonical
// spelling (Spelling::kJsonCanonical). For "a\n" with its quotes, the value is a and a
// line feed. Other texts that it accepts are ignored.
engine::Automaton raw_strings(const engine::Automaton& json_strings, engine::Budget& budget);

// The contents (the bytes between the quotes) of the JSON strings in canonical spelling
// whose values, in UTF-8, `values` accepts.
engine::Automaton string_contents(const engine::Automaton& values, engine::Budget& budget);

}  // namespace structout::tags
