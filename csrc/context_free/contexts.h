// Which terminals may stand beside each other.
#pragma once

#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "context_free/network.h"

namespace structout::context_free {

// For each state, the terminals that the lexer may follow where the state stands: all that
// are allowed beside those of the state, and maybe more. Rules return to wherever they are
// called, so this is like the states of an LALR parser. Empty if that takes too much.
std::vector<std::vector<uint32_t>> contexts_of_states(const Network& network, engine::Budget& budget);

}  // namespace structout::context_free
