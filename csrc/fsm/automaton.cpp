#include "fsm/automaton.h"

#include <algorithm>
#include <numeric>

#include "fsm/hash.h"

namespace structout::fsm {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

// The edges of a state with classes for targets; edges that touch and lead to one class
// are merged.
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

uint64_t hash_edges(const std::vector<Edge>& edges) {
  uint64_t hash = edges.size();
  for (const Edge& edge : edges) hash = mix(hash, uint64_t(edge.target) << 16 | uint64_t(edge.first) << 8 | edge.last);
  return hash;
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

AutomatonBuilder::Predecessors AutomatonBuilder::predecessors() const {
  uint32_t count = num_states();
  Predecessors before = {std::vector<uint32_t>(count + 1), std::vector<uint32_t>(edges_.size())};
  for (const Edge& edge : edges_) ++before.begin[edge.target + 1];
  for (uint32_t state = 0; state < count; ++state) before.begin[state + 1] += before.begin[state];
  std::vector<uint32_t> cursor(before.begin.begin(), before.begin.end() - 1);
  for (uint32_t state = 0; state < count; ++state) {
    for (uint32_t i = edge_begin_[state]; i < edge_begin_[state + 1]; ++i) {
      before.states[cursor[edges_[i].target]++] = state;
    }
  }
  return before;
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

// Partition refinement. States are compared by the classes of their edges' targets.
// When a class splits, its largest part keeps the number, so that a state changes its
// class a logarithmic number of times; only states with an edge to a changed one are
// compared again.
std::vector<uint32_t> AutomatonBuilder::equivalence_classes(Budget& budget) const {
  uint32_t count = num_states();
  auto [before_begin, before] = predecessors();

  // members[class_begin[c] ... class_end[c]] are the states of class c. Those that have
  // to be compared again come first, up to changed_end[c].
  std::vector<uint32_t> classes(count), members(count), position(count);
  std::vector<uint32_t> class_begin, class_end, changed_end;
  std::vector<uint32_t> pending;
  uint32_t num_placed = 0;
  for (uint8_t accepting : {uint8_t(0), uint8_t(1)}) {
    uint32_t begin = num_placed;
    for (uint32_t state = 0; state < count; ++state) {
      if (is_accepting_[state] != accepting) continue;
      classes[state] = uint32_t(class_begin.size());
      position[state] = num_placed;
      members[num_placed++] = state;
    }
    if (num_placed == begin) continue;
    pending.push_back(uint32_t(class_begin.size()));
    class_begin.push_back(begin);
    class_end.push_back(num_placed);
    changed_end.push_back(num_placed);
  }

  struct Signed {
    uint64_t hash;
    uint32_t state;
  };
  std::vector<Signed> changed;
  std::vector<Edge> edges, other_edges;
  auto edges_of = [&](uint32_t state, std::vector<Edge>& out) {
    canonical_edges(edges_.data() + edge_begin_[state], edges_.data() + edge_begin_[state + 1], classes, out);
  };
  auto sign = [&](uint32_t state) {
    edges_of(state, edges);
    budget.spend(edges.size() + 1);
    return Signed{hash_edges(edges), state};
  };
  auto is_equal = [&](uint32_t a, uint32_t b) {
    edges_of(a, edges);
    edges_of(b, other_edges);
    return edges == other_edges;
  };

  struct Group {
    uint32_t begin, end;
  };
  std::vector<Group> groups;
  std::vector<uint32_t> renumbered, scratch;
  while (!pending.empty()) {
    uint32_t current = pending.back();
    pending.pop_back();
    uint32_t begin = class_begin[current], end = class_end[current], middle = changed_end[current];
    changed_end[current] = begin;
    if (end - begin == 1) continue;
    changed.clear();
    for (uint32_t i = begin; i < middle; ++i) changed.push_back(sign(members[i]));
    // States that need no comparison all have one signature.
    bool has_unchanged = middle < end;
    Signed unchanged = has_unchanged ? sign(members[middle]) : Signed{0, kNone};
    std::sort(changed.begin(), changed.end(),
              [](const Signed& a, const Signed& b) { return a.hash != b.hash ? a.hash < b.hash : a.state < b.state; });
    // Equal hashes are compared in full. Different edges with one hash are so rare that
    // their states may be handled as a run of groups.
    groups.clear();
    scratch.clear();
    std::vector<uint32_t> joins_unchanged;
    for (size_t i = 0; i < changed.size();) {
      size_t run_end = i;
      while (run_end < changed.size() && changed[run_end].hash == changed[i].hash) ++run_end;
      std::vector<uint32_t> rest;
      for (size_t j = i; j < run_end; ++j) rest.push_back(changed[j].state);
      if (has_unchanged && changed[i].hash == unchanged.hash) {
        std::vector<uint32_t> others;
        for (uint32_t state : rest) (is_equal(state, unchanged.state) ? joins_unchanged : others).push_back(state);
        rest = std::move(others);
      }
      while (!rest.empty()) {
        std::vector<uint32_t> others;
        uint32_t first = rest[0], group_begin = uint32_t(scratch.size());
        scratch.push_back(first);
        for (size_t j = 1; j < rest.size(); ++j) {
          if (is_equal(rest[j], first)) {
            scratch.push_back(rest[j]);
          } else {
            others.push_back(rest[j]);
          }
        }
        groups.push_back({group_begin, uint32_t(scratch.size())});
        rest = std::move(others);
      }
      i = run_end;
    }
    // New order: the groups, then those that join the unchanged states, then these.
    uint32_t at = begin;
    auto place = [&](uint32_t state) {
      members[at] = state;
      position[state] = at++;
    };
    for (uint32_t state : scratch) place(state);
    for (uint32_t state : joins_unchanged) place(state);
    uint32_t rest_begin = begin + uint32_t(scratch.size());
    if (rest_begin < end) groups.push_back({uint32_t(scratch.size()), end - begin});
    if (groups.size() <= 1) continue;
    size_t largest = 0;
    for (size_t i = 1; i < groups.size(); ++i) {
      if (groups[i].end - groups[i].begin > groups[largest].end - groups[largest].begin) largest = i;
    }
    renumbered.clear();
    for (size_t i = 0; i < groups.size(); ++i) {
      uint32_t group_begin = begin + groups[i].begin, group_end = begin + groups[i].end;
      if (i == largest) {
        class_begin[current] = changed_end[current] = group_begin;
        class_end[current] = group_end;
        continue;
      }
      uint32_t number = uint32_t(class_begin.size());
      class_begin.push_back(group_begin);
      class_end.push_back(group_end);
      changed_end.push_back(group_begin);
      for (uint32_t j = group_begin; j < group_end; ++j) {
        classes[members[j]] = number;
        renumbered.push_back(members[j]);
      }
    }
    for (uint32_t state : renumbered) {
      budget.spend(before_begin[state + 1] - before_begin[state]);
      for (uint32_t i = before_begin[state]; i < before_begin[state + 1]; ++i) {
        uint32_t source = before[i], of = classes[source];
        if (position[source] < changed_end[of]) continue;
        if (changed_end[of] == class_begin[of]) pending.push_back(of);
        uint32_t other = members[changed_end[of]];
        std::swap(members[position[source]], members[changed_end[of]]);
        position[other] = position[source];
        position[source] = changed_end[of]++;
      }
    }
  }
  return classes;
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

}  // namespace structout::fsm
