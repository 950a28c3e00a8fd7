// Compiles regular expressions and lists of texts into automata.
#pragma once

#include <string>
#include <vector>

#include "fsm/automaton.h"
#include "fsm/limits.h"

namespace structout::fsm {

// The texts that the whole of a pattern matches.
Automaton compile_regex(const std::string& pattern, const Limits& limits);

// Exactly the given texts, in any order. The time is linear in their length.
Automaton compile_choices(std::vector<std::string> texts);

}  // namespace structout::fsm
