// The least costs from the states of a network to the ends of their rules.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "grammar/rules/network.h"

namespace structout::context_free {

// The cost of a symbol: of a byte or terminal, of an embedded text or of a token matched by its
// id. kNone: no path uses it.
using SymbolCost = std::function<uint32_t(uint32_t symbol)>;

// Returns for each state the least sum of costs of symbols that lead to the end of its rule,
// and kNone where there is none.
std::vector<uint32_t> least_to_rule_end(const Network& network, const SymbolCost& cost);

// The sum of costs, where kNone is infinite.
inline uint32_t cost_sum(uint32_t a, uint32_t b) { return a == kNone || b == kNone || a >= kNone - b ? kNone : a + b; }

}  // namespace structout::context_free
