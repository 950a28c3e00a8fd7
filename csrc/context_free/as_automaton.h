// Grammars that are regular languages.
#pragma once

#include <optional>

#include "context_free/network.h"
#include "fsm/automaton.h"
#include "fsm/limits.h"

namespace structout::context_free {

// The texts of the network as an automaton, in which every state has a way to the end.
// Nothing if the stacks have no bound, or if that exceeds the limits.
std::optional<fsm::Automaton> as_automaton(const Network& network, const fsm::Limits& limits);

}  // namespace structout::context_free
