#include "automata/automaton.h"

#include <algorithm>
#include <numeric>

namespace structout::engine {

namespace {

// The edges of a state with classes as targets. Adjacent edges to one class are merged.
void canonical_edges(const Edge* begin, const Edge* end, const std::vector<uint32_t>& classes,
                     std::vector<Edge>& edges) {
  edges.clear();
  for (const Edge* edge = begin; edge < end; ++edge) {
    uint32_t target = classes[edge->target];
    if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == edge->first) {
      edges.back().last = edge->last;
    } else {
      edges.push_back({edge->first, edge->last, target});
    }
  }
}

}  // namespace

bool Automaton::matches(const std::string& text) const {
  uint32_t state = num_states() == 0 ? kDead : 0;
  for (size_t i = 0; i < text.size() && state != kDead; ++i) state = next(state, uint8_t(text[i]));
  return state != kDead && accepts(state);
}

void AutomatonBuilder::add_state(bool is_accepting, const std::vector<Edge>& edges) {
  is_accepting_.push_back(is_accepting);
  edges_.insert(edges_.end(), edges.begin(), edges.end());
  edge_begin_.push_back(uint32_t(edges_.size()));
}

bool AutomatonBuilder::is_equal(uint32_t state, bool is_accepting, const std::vector<Edge>& edges) const {
  const Edge *begin = edges_.data() + edge_begin_[state], *end = edges_.data() + edge_begin_[state + 1];
  return bool(is_accepting_[state]) == is_accepting && std::equal(begin, end, edges.begin(), edges.end());
}

Automaton AutomatonBuilder::minimal(uint32_t start, Budget& budget) {
  prune(start);
  budget.spend(edges_.size());
  Automaton automaton;
  if (start_ != kDead) automaton = merged(equivalence_classes(budget));
  *this = AutomatonBuilder();
  return automaton;
}

Automaton AutomatonBuilder::numbered(uint32_t start) {
  prune(start);
  std::vector<uint32_t> classes(num_states());
  std::iota(classes.begin(), classes.end(), 0u);
  Automaton automaton;
  if (start_ != kDead) automaton = merged(classes);
  *this = AutomatonBuilder();
  return automaton;
}

Predecessors AutomatonBuilder::predecessors() const {
  std::vector<std::pair<uint32_t, uint32_t>> ends;
  ends.reserve(edges_.size());
  for (uint32_t state = 0; state < num_states(); ++state) {
    for (uint32_t i = edge_begin_[state]; i < edge_begin_[state + 1]; ++i) ends.emplace_back(state, edges_[i].target);
  }
  return Predecessors(num_states(), ends);
}

// Keeps the states that the start reaches and that reach an accepting state.
void AutomatonBuilder::prune(uint32_t start) {
  uint32_t count = num_states();
  std::vector<uint8_t> is_reached(count), is_alive(count);
  std::vector<uint32_t> pending = {start};
  is_reached[start] = 1;
  while (!pending.empty()) {
    uint32_t state = pending.back();
    pending.pop_back();
    for (uint32_t i = edge_begin_[state]; i < edge_begin_[state + 1]; ++i) {
      if (is_reached[edges_[i].target]) continue;
      is_reached[edges_[i].target] = 1;
      pending.push_back(edges_[i].target);
    }
  }
  auto [before_begin, before] = predecessors();
  for (uint32_t state = 0; state < count; ++state) {
    if (is_accepting_[state] && is_reached[state]) {
      is_alive[state] = 1;
      pending.push_back(state);
    }
  }
  while (!pending.empty()) {
    uint32_t state = pending.back();
    pending.pop_back();
    for (uint32_t i = before_begin[state]; i < before_begin[state + 1]; ++i) {
      if (is_alive[before[i]] || !is_reached[before[i]]) continue;
      is_alive[before[i]] = 1;
      pending.push_back(before[i]);
    }
  }
  std::vector<uint32_t> number(count, kDead);
  uint32_t num_kept = 0;
  for (uint32_t state = 0; state < count; ++state) {
    if (is_alive[state]) number[state] = num_kept++;
  }
  AutomatonBuilder kept;
  std::vector<Edge> edges;
  for (uint32_t state = 0; state < count; ++state) {
    if (!is_alive[state]) continue;
    edges.clear();
    for (uint32_t i = edge_begin_[state]; i < edge_begin_[state + 1]; ++i) {
      const Edge& edge = edges_[i];
      if (is_alive[edge.target]) edges.push_back({edge.first, edge.last, number[edge.target]});
    }
    kept.add_state(is_accepting_[state], edges);
  }
  kept.start_ = number[start];
  *this = std::move(kept);
}

std::vector<uint32_t> AutomatonBuilder::equivalence_classes(Budget& budget) const {
  std::vector<uint32_t> by_acceptance(is_accepting_.begin(), is_accepting_.end());
  std::vector<Edge> edges;
  auto sign = [&](uint32_t state, const std::vector<uint32_t>& classes, std::vector<uint64_t>& signature) {
    canonical_edges(edges_.data() + edge_begin_[state], edges_.data() + edge_begin_[state + 1], classes, edges);
    for (const Edge& edge : edges) {
      signature.push_back(uint64_t(edge.target) << 16 | uint64_t(edge.first) << 8 | edge.last);
    }
  };
  return coarsest_partition(by_acceptance, predecessors(), sign, budget);
}

// The automaton with one state for each class, whose members are equivalent.
Automaton AutomatonBuilder::merged(const std::vector<uint32_t>& classes) const {
  // The class of representatives[i] is the state i of the result.
  std::vector<uint32_t> number(classes.size(), kDead), representatives = {start_};
  number[classes[start_]] = 0;
  Automaton automaton;
  std::vector<Edge> edges;
  for (size_t i = 0; i < representatives.size(); ++i) {
    uint32_t state = representatives[i];
    const Edge* all = edges_.data();
    canonical_edges(all + edge_begin_[state], all + edge_begin_[state + 1], classes, edges);
    for (uint32_t j = edge_begin_[state]; j < edge_begin_[state + 1]; ++j) {
      uint32_t& found = number[classes[all[j].target]];
      if (found != kDead) continue;
      found = uint32_t(representatives.size());
      representatives.push_back(all[j].target);
    }
    for (Edge& edge : edges) edge.target = number[edge.target];
    automaton.is_accepting_.push_back(is_accepting_[state]);
    automaton.edges_.insert(automaton.edges_.end(), edges.begin(), edges.end());
    automaton.edge_begin_.push_back(uint32_t(automaton.edges_.size()));
  }
  automaton.edges_.shrink_to_fit();
  automaton.edge_begin_.shrink_to_fit();
  automaton.is_accepting_.shrink_to_fit();
  return automaton;
}

}  // namespace structout::engine
