// Compiles a schema without recursion into one deterministic automaton.
#pragma once

#include <optional>

#include "automata/automaton.h"
#include "json/automaton/schema_automaton.h"

namespace structout::json {

// The minimal automaton of the texts that the automaton accepts. It explores all
// configurations breadth first, which costs up to 256 reads for each, and then merges
// equivalent ones. None if the stack gets deeper than 64 states, as with recursion, if keys
// or items must differ from earlier ones, or if there are more configurations than the
// budget has states.
std::optional<engine::Automaton> closure(SchemaAutomaton& automaton, engine::Budget& budget);

}  // namespace structout::json
