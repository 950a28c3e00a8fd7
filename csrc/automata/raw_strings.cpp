#include "automata/raw_strings.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "automata/character_graph.h"

namespace structout::tags {

namespace {

using engine::Automaton;
using engine::Edge;

// The state after a text, or kDead.
uint32_t after(const Automaton& automaton, uint32_t state, const std::string& text) {
  for (size_t i = 0; i < text.size() && state != engine::kDead; ++i) state = automaton.next(state, uint8_t(text[i]));
  return state;
}

// True if the string may end in the state: the closing quote leads to an accepting state.
bool ends(const Automaton& automaton, uint32_t state) {
  uint32_t after_quote = automaton.next(state, '"');
  return after_quote != engine::kDead && automaton.accepts(after_quote);
}

}  // namespace

Automaton raw_strings(const Automaton& json_strings, engine::Budget& budget) {
  uint32_t start = json_strings.num_states() == 0 ? engine::kDead : json_strings.next(0, '"');
  if (start == engine::kDead) return {};
  // The states keep their numbers. States inside of an escape become unreachable.
  engine::AutomatonBuilder builder;
  for (uint32_t state = 0; state < json_strings.num_states(); ++state) {
    std::vector<Edge> edges;
    for (int character = 0; character < 128; ++character) {
      uint32_t target = after(json_strings, state, engine::canonical_spelling(char(character)));
      if (target != engine::kDead) edges.push_back({uint8_t(character), uint8_t(character), target});
    }
    for (const Edge* edge = json_strings.begin(state); edge < json_strings.end(state); ++edge) {
      if (edge->last >= 128) edges.push_back({std::max<uint8_t>(edge->first, 128), edge->last, edge->target});
    }
    budget.spend(128 + edges.size());
    builder.add_state(ends(json_strings, state), edges);
  }
  return builder.minimal(start, budget);
}

Automaton string_contents(const Automaton& values, engine::Budget& budget) {
  // The states keep their numbers. Those inside of escapes follow.
  std::vector<std::map<uint8_t, uint32_t>> targets(values.num_states());
  for (uint32_t state = 0; state < values.num_states(); ++state) {
    for (const Edge* edge = values.begin(state); edge < values.end(state); ++edge) {
      for (uint32_t byte = edge->first; byte <= edge->last; ++byte) {
        std::string spelling = byte < 128 ? engine::canonical_spelling(char(byte)) : std::string{char(byte)};
        uint32_t from = state;
        for (size_t i = 0; i + 1 < spelling.size(); ++i) {
          uint32_t next = targets[from].try_emplace(uint8_t(spelling[i]), uint32_t(targets.size())).first->second;
          if (next == targets.size()) targets.emplace_back();
          from = next;
        }
        targets[from][uint8_t(spelling.back())] = edge->target;
      }
    }
    budget.spend(256);
    budget.check_states(targets.size());
  }
  engine::AutomatonBuilder builder;
  for (uint32_t state = 0; state < targets.size(); ++state) {
    std::vector<Edge> edges;
    for (auto [byte, target] : targets[state]) edges.push_back({byte, byte, target});
    builder.add_state(state < values.num_states() && values.accepts(state), edges);
  }
  return values.num_states() == 0 ? Automaton() : builder.minimal(0, budget);
}

}  // namespace structout::tags
