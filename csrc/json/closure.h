// A schema as an automaton, where it needs no unbounded stack and no memory.
#pragma once

#include <optional>

#include "fsm/automaton.h"
#include "json/machine.h"

namespace structout::json {

// The automaton of the texts that the machine reads. None if they are not regular, as
// with recursion, if keys or items must differ from earlier ones, or if the states
// exceed those of the budget.
std::optional<fsm::Automaton> closure(Machine& machine, fsm::Budget& budget);

}  // namespace structout::json
