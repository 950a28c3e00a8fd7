#include "grammar/rules/as_automaton.h"

#include <vector>

#include "grammar/gss/reader.h"

namespace structout::context_free {

std::optional<engine::Automaton> as_automaton(const Network& network, const engine::Limits& limits) try {
  bool reads_bytes_only = network.embedded().empty() && !network.has_tokens() && !network.has_token_limits();
  if (network.is_recursive() || !reads_bytes_only) return std::nullopt;
  engine::Budget budget(limits);
  Lexer lexer(network);
  Reader reader(network, lexer);
  Configuration start = reader.start(budget);
  if (start.is_dead()) return engine::Automaton();
  std::vector<Configuration> configs = {start};
  PairTable numbers;
  numbers.add(start.node, start.lexer_state, 0);
  engine::AutomatonBuilder builder;
  for (size_t i = 0; i < configs.size(); ++i) {
    std::vector<engine::Edge> edges;
    for (int byte = 0; byte < 256; ++byte) {
      Configuration next = reader.after(configs[i], uint8_t(byte), budget);
      if (next.is_dead()) continue;
      uint32_t number = numbers.find(next.node, next.lexer_state);
      if (number == PairTable::kMissing) {
        number = uint32_t(configs.size());
        numbers.add(next.node, next.lexer_state, number);
        configs.push_back(next);
        budget.check_states(configs.size());
      }
      if (!edges.empty() && edges.back().target == number && edges.back().last + 1 == byte) {
        edges.back().last = uint8_t(byte);
      } else {
        edges.push_back({uint8_t(byte), uint8_t(byte), number});
      }
    }
    budget.spend(64);
    builder.add_state(reader.may_end(configs[i], budget), edges);
  }
  return builder.minimal(0, budget);
} catch (const engine::LimitError&) {
  return std::nullopt;
}

}  // namespace structout::context_free
