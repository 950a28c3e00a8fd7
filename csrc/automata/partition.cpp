#include "automata/partition.h"

#include <algorithm>

#include "base/hash.h"

namespace structout::engine {

namespace {

constexpr uint32_t kNoTarget = UINT32_MAX;

}  // namespace

Predecessors::Predecessors(uint32_t num_states, const std::vector<std::pair<uint32_t, uint32_t>>& edges)
    : begin(num_states + 1), states(edges.size()) {
  for (auto [source, target] : edges) ++begin[target + 1];
  for (uint32_t state = 0; state < num_states; ++state) begin[state + 1] += begin[state];
  std::vector<uint32_t> cursor(begin.begin(), begin.end() - 1);
  for (auto [source, target] : edges) states[cursor[target]++] = source;
}

// When a class splits, its largest part keeps the number, so that a state changes its
// class a logarithmic number of times (the idea of Hopcroft, "An n log n algorithm for
// minimizing states in a finite automaton", 1971). Only states with an edge to a
// changed one are compared again.
std::vector<uint32_t> coarsest_partition(const std::vector<uint32_t>& initial, const Predecessors& predecessors,
                                         const Signature& sign_into, Budget& budget) {
  uint32_t count = uint32_t(initial.size());
  const auto& [before_begin, before] = predecessors;

  // members[class_begin[c] ... class_end[c]] are the states of class c. States that
  // must be compared again come first, up to changed_end[c].
  std::vector<uint32_t> classes(count), members(count), position(count);
  std::vector<uint32_t> class_begin, class_end, changed_end;
  std::vector<uint32_t> pending;
  uint32_t num_placed = 0;
  uint32_t num_initial = count == 0 ? 0 : *std::max_element(initial.begin(), initial.end()) + 1;
  for (uint32_t number = 0; number < num_initial; ++number) {
    uint32_t begin = num_placed;
    for (uint32_t state = 0; state < count; ++state) {
      if (initial[state] != number) continue;
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
  std::vector<uint64_t> signature, other_signature;
  auto signature_of = [&](uint32_t state, std::vector<uint64_t>& out) {
    out.clear();
    sign_into(state, classes, out);
  };
  auto sign = [&](uint32_t state) {
    signature_of(state, signature);
    budget.spend(signature.size() + 1);
    uint64_t hash = signature.size();
    for (uint64_t word : signature) hash = mix(hash, word);
    return Signed{hash, state};
  };
  auto is_equal = [&](uint32_t a, uint32_t b) {
    signature_of(a, signature);
    signature_of(b, other_signature);
    return signature == other_signature;
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
    Signed unchanged = has_unchanged ? sign(members[middle]) : Signed{0, kNoTarget};
    std::sort(changed.begin(), changed.end(),
              [](const Signed& a, const Signed& b) { return a.hash != b.hash ? a.hash < b.hash : a.state < b.state; });
    // Equal hashes are compared in full. Different signatures with one hash are so rare that
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

}  // namespace structout::engine
