// Converts a grammar whose stacks are bounded into a deterministic automaton.
#pragma once

#include <optional>

#include "automata/automaton.h"
#include "base/limits.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

// Returns the minimal deterministic automaton of the network's texts, in which every state
// has a path to the end. Each pair of a node (a set of stacks) and a state of the lexer
// becomes one state before minimization.
//
// Returns nothing if the network is recursive, if it reads anything but bytes (embedded
// languages, tokens by id, token limits), or if a limit is exceeded.
std::optional<engine::Automaton> as_automaton(const Network& network, const engine::Limits& limits);

}  // namespace structout::context_free
