// A schema as an automaton, where it needs no unbounded stack and no memory.
#pragma once

#include <optional>

#include "json/machine.h"
#include "regular/automaton.h"

namespace structout::json {

// The automaton of the texts that the machine reads. None if they are not regular, as
// with recursion, if keys or items must differ from earlier ones, or if the states
// exceed those of the budget.
std::optional<engine::Automaton> closure(Machine& machine, engine::Budget& budget);

}  // namespace structout::json
