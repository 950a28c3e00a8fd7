// Grammars that are regular languages.
#pragma once

#include <optional>

#include "base/limits.h"
#include "context_free/network.h"
#include "regular/automaton.h"

namespace structout::context_free {

// The texts of the network as an automaton, in which every state has a way to the end.
// Nothing if the stacks have no bound, or if that exceeds the limits.
std::optional<engine::Automaton> as_automaton(const Network& network, const engine::Limits& limits);

}  // namespace structout::context_free
