// Contexts: the terminals that a lexer may follow beside those of a state.
#pragma once

#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

// Returns the context of each state: the terminals that the lexer may follow while the
// state is on top of a stack. These are the terminals of the state, of all states that can
// be on top at the same time, and the ignored ones. The context may be too large, since a
// rule is taken to return to all of its callers, not only to the one on the stack. States
// that read no symbols have an empty context.
//
// Returns an empty list if there are too many sets of states that can be on top together.
std::vector<std::vector<uint32_t>> contexts_of_states(const Network& network, engine::Budget& budget);

}  // namespace structout::context_free
