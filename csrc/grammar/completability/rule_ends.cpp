#include "grammar/completability/rule_ends.h"

#include <algorithm>

namespace structout::context_free {

std::vector<uint32_t> least_to_rule_end(const Network& network, const SymbolCost& cost) {
  struct Edge {
    uint32_t target, cost;
  };
  // `before`: the states that lead to a state, or that call the rule that starts with it.
  // `after`: the edges of a state.
  std::vector<std::vector<uint32_t>> before(network.num_states());
  std::vector<std::vector<Edge>> after(network.num_states());
  std::vector<uint32_t> least(network.num_states(), kNone), pending, costs;
  uint32_t num_symbols = network.has_lexer() ? uint32_t(network.terminals().size()) : 256;
  for (uint32_t symbol = 0; symbol < num_symbols; ++symbol) costs.push_back(cost(symbol));
  for (uint32_t state = 0; state < network.num_states(); ++state) {
    auto add = [&](uint32_t target, uint32_t of_symbol) {
      if (!after[state].empty() && after[state].back().target == target && after[state].back().cost == of_symbol)
        return;
      before[target].push_back(state);
      after[state].push_back({target, of_symbol});
    };
    for (uint32_t symbol = 0; symbol < num_symbols; ++symbol) {
      uint32_t next = network.next(state, symbol);
      if (next != kNone) add(next, costs[symbol]);
    }
    visit_others(network, state, [&](uint32_t symbol, uint32_t next) { add(next, cost(symbol)); });
    for (const Call* call = network.calls_begin(state); call < network.calls_end(state); ++call) {
      before[call->target].push_back(state);
      before[network.start(call->rule)].push_back(state);
    }
    if (!network.is_accepting(state)) continue;
    least[state] = 0;
    pending.push_back(state);
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    for (uint32_t state : before[pending[i]]) {
      uint32_t shortest = least[state];
      for (const Edge& edge : after[state]) shortest = std::min(shortest, cost_sum(least[edge.target], edge.cost));
      for (const Call* call = network.calls_begin(state); call < network.calls_end(state); ++call) {
        shortest = std::min(shortest, cost_sum(least[call->target], least[network.start(call->rule)]));
      }
      if (shortest == least[state]) continue;
      least[state] = shortest;
      pending.push_back(state);
    }
  }
  return least;
}

}  // namespace structout::context_free
