#include "grammar/lexer/contexts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/sorted_set.h"

namespace structout::context_free {

namespace {

constexpr uint32_t kMaxSets = 5'000;  // of states that can be on top together

class Contexts {
 public:
  Contexts(const Network& network, engine::Budget& budget)
      : network_(network), budget_(budget), is_reached_(network.num_states()) {
    returns_.resize(network.num_rules());
    for (uint32_t state = 0; state < network.num_states(); ++state) {
      for (const Call* call = network.calls_begin(state); call < network.calls_end(state); ++call) {
        returns_[call->rule].push_back(call->target);
      }
      edges_.emplace_back();
      for (uint32_t terminal = 0; terminal < network.terminals().size(); ++terminal) {
        uint32_t next = network.next(state, terminal);
        if (next != kNone) edges_.back().emplace_back(terminal, next);
      }
      visit_others(network, state, [&](uint32_t symbol, uint32_t next) { edges_.back().emplace_back(symbol, next); });
    }
  }

  std::vector<std::vector<uint32_t>> of_states() {
    size_t num_terminals = network_.terminals().size();
    std::vector<std::vector<uint8_t>> is_beside(network_.num_states(), std::vector<uint8_t>(num_terminals));
    std::vector<uint8_t> has_any(network_.num_states());
    std::set<std::vector<uint32_t>> seen;
    std::vector<std::vector<uint32_t>> pending = {{network_.start(network_.root())}};
    seen.insert(pending[0]);
    while (!pending.empty()) {
      std::vector<uint32_t> states = closure(std::move(pending.back()));
      pending.pop_back();
      std::map<uint32_t, std::vector<uint32_t>> after;  // by symbol
      for (uint32_t state : states) {
        for (auto [symbol, next] : edges_[state]) after[symbol].push_back(next);
      }
      budget_.spend(states.size() * after.size() / 16 + 1);
      for (uint32_t state : states) {
        if (!network_.reads_symbols(state)) continue;
        has_any[state] = 1;
        for (const auto& [symbol, targets] : after) {
          if (symbol < num_terminals) is_beside[state][symbol] = 1;
        }
      }
      for (auto& [symbol, kernel] : after) {
        engine::make_set(kernel);
        if (seen.insert(kernel).second) pending.push_back(std::move(kernel));
      }
      if (seen.size() > kMaxSets) return {};
    }
    std::vector<std::vector<uint32_t>> contexts(network_.num_states());
    for (uint32_t state = 0; state < network_.num_states(); ++state) {
      for (uint32_t terminal = 0; terminal < num_terminals && has_any[state]; ++terminal) {
        bool is_ignored = network_.terminals()[terminal].is_ignored;
        if (is_beside[state][terminal] || is_ignored) contexts[state].push_back(terminal);
      }
    }
    return contexts;
  }

 private:
  // Returns the states that the given ones reach without a symbol, by calls and by returns
  // to any caller.
  std::vector<uint32_t> closure(std::vector<uint32_t> pending) {
    std::vector<uint32_t> states;
    while (!pending.empty()) {
      uint32_t state = pending.back();
      pending.pop_back();
      if (std::exchange(is_reached_[state], 1)) continue;
      states.push_back(state);
      budget_.spend(1);
      for (const Call* call = network_.calls_begin(state); call < network_.calls_end(state); ++call) {
        pending.push_back(network_.start(call->rule));
      }
      if (!network_.is_accepting(state)) continue;
      const std::vector<uint32_t>& targets = returns_[network_.rule_of(state)];
      pending.insert(pending.end(), targets.begin(), targets.end());
    }
    for (uint32_t state : states) is_reached_[state] = 0;
    return states;
  }

  const Network& network_;
  engine::Budget& budget_;
  std::vector<std::vector<uint32_t>> returns_;                     // by rule
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> edges_;  // by state: symbols and targets
  std::vector<uint8_t> is_reached_;                                // by state, in closure()
};

}  // namespace

std::vector<std::vector<uint32_t>> contexts_of_states(const Network& network, engine::Budget& budget) {
  return Contexts(network, budget).of_states();
}

}  // namespace structout::context_free
