#include "grammar/rules/rule_automaton.h"

#include <algorithm>
#include <map>
#include <utility>

#include "automata/components.h"
#include "automata/partition.h"
#include "base/sorted_set.h"
#include "grammar/gss/number_tables.h"

namespace structout::context_free {

namespace {

// Replaces the targets of edges by their classes, and merges edges that touch and lead to
// one class.
std::vector<SymbolEdge> merged_edges(const std::vector<SymbolEdge>& edges, const std::vector<uint32_t>& classes) {
  std::vector<SymbolEdge> merged;
  for (const SymbolEdge& edge : edges) {
    uint32_t target = classes[edge.target];
    if (!merged.empty() && merged.back().target == target && merged.back().last + 1 == edge.first) {
      merged.back().last = edge.last;
    } else {
      merged.push_back({edge.first, edge.last, target});
    }
  }
  return merged;
}

// Merges equivalent states. The start stays state 0.
RuleAutomaton minimal(const RuleAutomaton& states, engine::Budget& budget) {
  std::vector<std::pair<uint32_t, uint32_t>> ends;
  std::vector<uint32_t> initial;
  for (uint32_t state = 0; state < states.size(); ++state) {
    for (const SymbolEdge& edge : states[state].edges) ends.emplace_back(state, edge.target);
    for (const Call& call : states[state].calls) ends.emplace_back(state, call.target);
    initial.push_back(state == 0 ? 0 : 1 + states[state].is_accepting);
  }
  auto sign = [&](uint32_t state, const std::vector<uint32_t>& classes, std::vector<uint64_t>& signature) {
    for (const SymbolEdge& edge : merged_edges(states[state].edges, classes)) {
      signature.push_back(uint64_t(edge.first) << 32 | edge.last);
      signature.push_back(edge.target);
    }
    for (const Call& call : states[state].calls) {
      signature.push_back(uint64_t(call.rule) << 32 | classes[call.target]);
    }
  };
  engine::Predecessors predecessors(uint32_t(states.size()), ends);
  std::vector<uint32_t> classes = engine::coarsest_partition(initial, predecessors, sign, budget);
  // Classes are numbered in the order of their first states.
  std::vector<uint32_t> number(states.size(), kNone), representatives;
  for (uint32_t state = 0; state < states.size(); ++state) {
    if (number[classes[state]] != kNone) continue;
    number[classes[state]] = uint32_t(representatives.size());
    representatives.push_back(state);
  }
  for (uint32_t& of_state : classes) of_state = number[of_state];
  RuleAutomaton result;
  for (uint32_t state : representatives) {
    RuleState merged{states[state].is_accepting, merged_edges(states[state].edges, classes), states[state].calls};
    for (Call& call : merged.calls) call.target = classes[call.target];
    result.push_back(std::move(merged));
  }
  return result;
}

}  // namespace

uint32_t RuleNfa::add_node() {
  nodes_.emplace_back();
  return num_nodes() - 1;
}

uint32_t RuleNfa::add_automaton(uint32_t node, const RuleAutomaton& automaton) {
  uint32_t base = num_nodes(), end = base + uint32_t(automaton.size());
  nodes_.resize(end + 1);
  if (!automaton.empty()) add_empty(node, base);
  for (uint32_t state = 0; state < automaton.size(); ++state) {
    for (const SymbolEdge& edge : automaton[state].edges) {
      add_edge(base + state, {edge.first, edge.last, base + edge.target});
    }
    for (const Call& call : automaton[state].calls) add_call(base + state, {call.rule, base + call.target});
    if (automaton[state].is_accepting) add_empty(base + state, end);
  }
  return end;
}

bool RuleNfa::matches_empty(const std::vector<uint8_t>& is_nullable) const {
  std::vector<uint8_t> is_reached(nodes_.size());
  std::vector<uint32_t> pending = {kStart};
  is_reached[kStart] = 1;
  auto reach = [&](uint32_t node) {
    if (!std::exchange(is_reached[node], 1)) pending.push_back(node);
  };
  while (!pending.empty()) {
    const Node& node = nodes_[pending.back()];
    pending.pop_back();
    if (node.is_accepting) return true;
    for (uint32_t target : node.empty) reach(target);
    for (const Call& call : node.calls) {
      if (is_nullable[call.rule]) reach(call.target);
    }
  }
  return false;
}

void RuleNfa::skip_calls(const std::vector<uint8_t>& is_nullable) {
  for (Node& node : nodes_) {
    for (const Call& call : node.calls) {
      if (is_nullable[call.rule]) node.empty.push_back(call.target);
    }
  }
}

// The nodes from which the end can be reached.
std::vector<uint8_t> RuleNfa::live_nodes(const std::vector<uint8_t>& is_productive) const {
  std::vector<std::pair<uint32_t, uint32_t>> ends;
  std::vector<uint8_t> is_live(nodes_.size());
  std::vector<uint32_t> pending;
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    for (const SymbolEdge& edge : nodes_[node].edges) ends.emplace_back(node, edge.target);
    for (uint32_t target : nodes_[node].empty) ends.emplace_back(node, target);
    for (const Call& call : nodes_[node].calls) {
      if (is_productive[call.rule]) ends.emplace_back(node, call.target);
    }
    if (!nodes_[node].is_accepting) continue;
    is_live[node] = 1;
    pending.push_back(node);
  }
  engine::Predecessors before(num_nodes(), ends);
  while (!pending.empty()) {
    uint32_t node = pending.back();
    pending.pop_back();
    for (uint32_t i = before.begin[node]; i < before.begin[node + 1]; ++i) {
      if (!std::exchange(is_live[before.states[i]], 1)) pending.push_back(before.states[i]);
    }
  }
  return is_live;
}

bool RuleNfa::has_text(const std::vector<uint8_t>& is_productive) const { return live_nodes(is_productive)[kStart]; }

void RuleNfa::remove_dead_ends(const std::vector<uint8_t>& is_productive) {
  std::vector<uint8_t> is_live = live_nodes(is_productive);
  auto remove_if = [](auto& list, auto is_dead) {
    list.erase(std::remove_if(list.begin(), list.end(), is_dead), list.end());
  };
  for (Node& node : nodes_) {
    remove_if(node.edges, [&](const SymbolEdge& edge) { return !is_live[edge.target]; });
    remove_if(node.empty, [&](uint32_t target) { return !is_live[target]; });
    remove_if(node.calls, [&](const Call& call) { return !is_live[call.target] || !is_productive[call.rule]; });
  }
}

// The nodes that the given ones reach by empty edges, without those that do not matter (see
// Node::matters()). `is_reached` is scratch memory, 0 for each node before and afterwards.
std::vector<uint32_t> RuleNfa::closure(std::vector<uint32_t> nodes, std::vector<uint8_t>& is_reached) const {
  std::vector<uint32_t> reached;
  while (!nodes.empty()) {
    uint32_t node = nodes.back();
    nodes.pop_back();
    if (std::exchange(is_reached[node], 1)) continue;
    reached.push_back(node);
    nodes.insert(nodes.end(), nodes_[node].empty.begin(), nodes_[node].empty.end());
  }
  for (uint32_t node : reached) is_reached[node] = 0;
  auto is_idle = [this](uint32_t node) { return !nodes_[node].matters(); };
  reached.erase(std::remove_if(reached.begin(), reached.end(), is_idle), reached.end());
  std::sort(reached.begin(), reached.end());
  return reached;
}

RuleAutomaton RuleNfa::determinize(engine::Budget& budget) const {
  RuleAutomaton states;
  std::vector<uint8_t> is_reached(num_nodes());
  const std::vector<uint32_t> start = closure({kStart}, is_reached);
  ListNumbers<uint32_t> others;  // the nodes of the states that follow; nothing leads to the start
  auto number_of = [&](std::vector<uint32_t> targets) {
    std::vector<uint32_t> nodes = closure(std::move(targets), is_reached);
    budget.spend(nodes.size() + 1);
    uint32_t number = 1 + others.number_of(nodes);
    budget.check_states(number + 1);
    return number;
  };
  for (uint32_t state = 0; state <= others.size(); ++state) {
    const std::vector<uint32_t> nodes = state == 0 ? start : others.list(state - 1);
    RuleState result;
    std::vector<SymbolEdge> edges;
    std::vector<uint32_t> bounds;
    std::map<uint32_t, std::vector<uint32_t>> called;
    for (uint32_t node : nodes) {
      result.is_accepting = result.is_accepting || (state != 0 && nodes_[node].is_accepting);
      for (const SymbolEdge& edge : nodes_[node].edges) {
        edges.push_back(edge);
        bounds.push_back(edge.first);
        bounds.push_back(edge.last + 1);
      }
      for (const Call& call : nodes_[node].calls) called[call.rule].push_back(call.target);
    }
    engine::make_set(bounds);
    std::sort(edges.begin(), edges.end(), [](const SymbolEdge& a, const SymbolEdge& b) { return a.first < b.first; });
    std::vector<SymbolEdge> open;  // edges that may cover the present interval
    size_t num_opened = 0;
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      while (num_opened < edges.size() && edges[num_opened].first == bounds[i]) open.push_back(edges[num_opened++]);
      open.erase(
          std::remove_if(open.begin(), open.end(), [&](const SymbolEdge& edge) { return edge.last < bounds[i]; }),
          open.end());
      budget.spend(open.size() + 1);
      if (open.empty()) continue;
      std::vector<uint32_t> targets;
      for (const SymbolEdge& edge : open) targets.push_back(edge.target);
      result.edges.push_back({bounds[i], bounds[i + 1] - 1, number_of(std::move(targets))});
    }
    for (auto& [rule, targets] : called) result.calls.push_back({rule, number_of(std::move(targets))});
    states.push_back(std::move(result));
  }
  return minimal(states, budget);
}

void remove_left_recursion(const std::vector<uint32_t>& rules, std::vector<RuleAutomaton>& automata,
                           engine::Budget& budget) {
  std::map<uint32_t, uint32_t> index_of;
  for (uint32_t i = 0; i < rules.size(); ++i) index_of[rules[i]] = i;
  std::vector<std::vector<uint32_t>> first_calls(rules.size());
  std::vector<uint8_t> calls_itself(rules.size());
  for (uint32_t i = 0; i < rules.size(); ++i) {
    if (automata[i].empty()) continue;
    for (const Call& call : automata[i][0].calls) {
      auto found = index_of.find(call.rule);
      if (found == index_of.end()) continue;
      first_calls[i].push_back(found->second);
      calls_itself[i] |= found->second == i;
    }
  }
  engine::Components components(first_calls);
  std::vector<std::vector<uint32_t>> groups(components.size());
  for (uint32_t i = 0; i < rules.size(); ++i) groups[components[i]].push_back(i);
  const std::vector<RuleAutomaton> before = automata;
  for (const std::vector<uint32_t>& group : groups) {
    if (group.size() == 1 && !calls_itself[group[0]]) continue;
    // True for a call at the start of a rule of the group that calls a rule of the group.
    auto is_left_corner = [&](uint32_t state, const Call& call) {
      auto found = index_of.find(call.rule);
      return state == 0 && found != index_of.end() && components[found->second] == components[group[0]];
    };
    for (uint32_t goal : group) {
      RuleNfa nfa;
      std::map<uint32_t, uint32_t> base;
      for (uint32_t i : group) {
        base[i] = nfa.num_nodes();
        for (size_t state = 0; state < before[i].size(); ++state) nfa.add_node();
        nfa.add_empty(RuleNfa::kStart, base[i]);
      }
      std::map<uint32_t, std::vector<uint32_t>>
          after;  // by rule of the group: the nodes after calls of it at the start of another
      for (uint32_t i : group) {
        for (const Call& call : before[i][0].calls) {
          if (is_left_corner(0, call)) after[index_of[call.rule]].push_back(base[i] + call.target);
        }
      }
      for (uint32_t i : group) {
        for (uint32_t state = 0; state < before[i].size(); ++state) {
          const RuleState& from = before[i][state];
          uint32_t node = base[i] + state;
          for (const SymbolEdge& edge : from.edges) nfa.add_edge(node, {edge.first, edge.last, base[i] + edge.target});
          for (const Call& call : from.calls) {
            if (!is_left_corner(state, call)) nfa.add_call(node, {call.rule, base[i] + call.target});
          }
          if (!from.is_accepting) continue;
          if (i == goal) nfa.set_accepting(node);
          for (uint32_t next : after[i]) nfa.add_empty(node, next);
        }
      }
      automata[goal] = nfa.determinize(budget);
    }
  }
}

}  // namespace structout::context_free
