// The least costs from the states of a network to the ends of their rules.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "grammar/rules/network.h"
#include "token_masks/endings.h"

namespace structout::context_free {

// The cost of a symbol: of a byte or terminal, of an embedded text or of a token matched by its
// id. kNone: no path uses it.
using SymbolCost = std::function<uint32_t(uint32_t symbol)>;
using engine::cost_sum;
static_assert(kNone == engine::kUnknownCost);

// Returns for each state the least sum of costs of symbols that lead to the end of its rule,
// and kNone where there is none.
std::vector<uint32_t> least_to_rule_end(const Network& network, const SymbolCost& cost);

}  // namespace structout::context_free
