// The lazy product of several languages: states are created on their first visit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/limits.h"
#include "regular/automaton.h"
#include "regular/nfa.h"
#include "regular/subset_states.h"

namespace structout::engine {

using ComponentSet = std::vector<uint64_t>;  // one bit for each component

// A Boolean expression over the components that accept a text, in postfix notation:
// component numbers and the operators below. {0, 1, kNot, kAnd} means that component 0
// accepts the text and component 1 does not.
using Condition = std::vector<int64_t>;
constexpr int64_t kNot = -1, kAnd = -2, kOr = -3, kTrue = -4, kFalse = -5;

// The deterministic product of regular expressions and automata, by the subset
// construction over all components at once. A state is a set of nodes of all components
// and has a verdict: the set of components that accept a text that ends there. The
// first visit to a state expands it, later ones are lookups. Threads may share it:
// calls that visit states lock it.
class LazyProduct {
 public:
  using Component = std::variant<std::string, Automaton>;  // a regular expression, or an automaton

  LazyProduct(const std::vector<Component>& components, const Limits& limits);
  ~LazyProduct();

  uint32_t num_components() const { return num_components_; }
  uint32_t num_states() const { return num_states_; }

  // True if another thread holds the lock, so that the next call may wait for a whole
  // search.
  bool is_busy() { return !std::unique_lock<std::mutex>(mutex_, std::try_to_lock).owns_lock(); }

  // The state after another byte, or kDead if no component is live. State 0 is the start.
  uint32_t next(uint32_t state, uint8_t byte);

  ComponentSet verdict(uint32_t state);

  // The components that may accept this text or a continuation of it. A component that
  // is not live never accepts again.
  ComponentSet live(uint32_t state);

  // A shortest text that leads from the state to one whose verdict satisfies the
  // condition, by breadth-first search; nothing if there is none. Skips states whose
  // live components already decide that the condition stays false. Throws LimitError
  // after `max_states` states, or after the time of the limits.
  std::optional<std::string> find(uint32_t state, const Condition& condition, uint64_t max_states);

  // Throws std::invalid_argument if the condition is not well formed.
  void check(const Condition& condition) const;

 private:
  struct State {
    bool is_expanded = false;
    ComponentSet verdict, live;
    std::vector<Edge> edges;
  };

  const SubsetStates::Expansion& expand(uint32_t state);
  const State& expanded(uint32_t state);
  static uint32_t next(const State& state, uint8_t byte);

  const uint32_t num_components_;
  Budget budget_;
  Nfa nfa_;
  std::unique_ptr<SubsetStates> subsets_;
  std::vector<State> states_;
  std::atomic<uint32_t> num_states_{0};
  std::mutex mutex_;
};

}  // namespace structout::engine
