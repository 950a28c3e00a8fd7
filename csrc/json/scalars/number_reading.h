// Builds an automaton over the texts of numbers from a class that reads them byte by byte.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "automata/automaton.h"
#include "base/limits.h"

namespace structout::json {

constexpr char kNumberBytes[] = "+-.0123456789e";  // in increasing order

// A reading has a State with a key() that tells its states apart, and
//   next(state, byte)  the state after another byte, or nothing
//   accepts(state)     true if the text may end there
// The first state is State(). The reachable states are explored breadth first, and the
// automaton is minimal.
template <typename Reading>
engine::Automaton automaton_of(const Reading& reading, engine::Budget& budget) {
  using State = typename Reading::State;
  std::unordered_map<uint64_t, uint32_t> numbers;
  std::vector<State> states;
  auto number_of = [&](const State& state) {
    auto [found, is_new] = numbers.try_emplace(state.key(), uint32_t(states.size()));
    if (is_new) states.push_back(state);
    return found->second;
  };
  number_of(State());
  engine::AutomatonBuilder builder;
  std::vector<engine::Edge> edges;
  for (size_t i = 0; i < states.size(); ++i) {
    edges.clear();
    for (const char* byte = kNumberBytes; *byte != '\0'; ++byte) {
      std::optional<State> next = reading.next(State(states[i]), *byte);
      if (next) edges.push_back({uint8_t(*byte), uint8_t(*byte), number_of(*next)});
    }
    builder.add_state(reading.accepts(states[i]), edges);
    budget.spend(edges.size() + 1);
    budget.check_states(states.size());
  }
  return builder.minimal(0, budget);
}

}  // namespace structout::json
