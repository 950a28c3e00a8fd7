// The subset construction (Rabin and Scott, 1959), with lookaheads and anchors.
#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>

#include "automata/compile.h"
#include "automata/nfa.h"
#include "base/hash.h"
#include "base/state_numbers.h"

namespace structout::engine {

namespace {

// A node, a flag that the text must end there ($ was passed), and the number of a list
// of open conditions: the lookaheads passed on the way, each with the state of its
// automaton.
using Item = uint64_t;

Item make_item(uint32_t node, bool has_ended, uint32_t conditions) {
  return uint64_t(conditions) << 32 | uint64_t(node) << 1 | uint64_t(has_ended);
}
uint32_t node_of(Item item) { return uint32_t(item) >> 1; }
bool has_ended(Item item) { return item & 1; }
uint32_t conditions_of(Item item) { return uint32_t(item >> 32); }

struct LookaheadCondition {
  uint32_t automaton;  // 2 * the lookahead, + 1 for its automaton at the start
  uint32_t state;
  bool operator<(const LookaheadCondition& other) const {
    return automaton != other.automaton ? automaton < other.automaton : state < other.state;
  }
};

// Lists of conditions that all must hold. Equal lists have one number, and number 0 is
// the empty list. Conditions that already hold for every rest are dropped, so that
// lists stay short.
class ConditionLists {
 public:
  ConditionLists(const Nfa& nfa, const Budget& budget) : nfa_(nfa), budget_(budget) { number_of({}); }

  // Returns kDead if the lookahead can never hold.
  uint32_t with_lookahead(uint32_t list, uint32_t lookahead, bool is_at_start) {
    uint32_t automaton = 2 * lookahead + is_at_start;
    if (automaton_of(automaton).num_states() == 0) return kDead;
    std::vector<LookaheadCondition> conditions = lists_[list];
    if (!holds_for_all(automaton, 0)) conditions.push_back({automaton, 0});
    return number_of(std::move(conditions));
  }

  // The list after another byte, or kDead if one of the conditions fails.
  uint32_t after(uint32_t list, uint8_t byte) {
    if (list == 0) return 0;
    std::vector<LookaheadCondition> conditions;
    for (const LookaheadCondition& condition : std::vector<LookaheadCondition>(lists_[list])) {
      uint32_t state = automaton_of(condition.automaton).next(condition.state, byte);
      if (state == kDead) return kDead;
      if (!holds_for_all(condition.automaton, state)) conditions.push_back({condition.automaton, state});
    }
    return number_of(std::move(conditions));
  }

  // True if every condition of the list accepts the empty rest, so that the text may
  // end here.
  bool hold(uint32_t list) const {
    return std::all_of(lists_[list].begin(), lists_[list].end(), [this](const LookaheadCondition& condition) {
      return automaton_of(condition.automaton).accepts(condition.state);
    });
  }

  // Marks the bytes at which the outcome of `after` may change.
  void mark_bounds(uint32_t list, std::array<bool, 257>& bounds) const {
    for (const LookaheadCondition& condition : lists_[list]) {
      const Automaton& automaton = automaton_of(condition.automaton);
      for (const Edge* edge = automaton.begin(condition.state); edge < automaton.end(condition.state); ++edge) {
        bounds[edge->first] = bounds[edge->last + 1] = true;
      }
    }
  }

 private:
  const Automaton& automaton_of(uint32_t automaton) const {
    const Lookahead& lookahead = nfa_.lookaheads[automaton / 2];
    return automaton % 2 ? lookahead.at_start : lookahead.inside;
  }

  bool holds_for_all(uint32_t automaton, uint32_t state) const {
    const Automaton& of = automaton_of(automaton);
    const Edge* edge = of.begin(state);
    return of.accepts(state) && of.end(state) - edge == 1 && *edge == Edge{0, 255, state};
  }

  uint32_t number_of(std::vector<LookaheadCondition> conditions) {
    std::sort(conditions.begin(), conditions.end());
    auto [found, is_new] = numbers_.try_emplace(std::move(conditions), uint32_t(lists_.size()));
    if (is_new) {
      lists_.push_back(found->first);
      num_entries_ += found->first.size();
      if (num_entries_ > budget_.limits.conditions) {
        throw LimitError("pattern_conditions", num_entries_, budget_.limits.conditions);
      }
    }
    return found->second;
  }

  const Nfa& nfa_;
  const Budget& budget_;
  uint64_t num_entries_ = 0;
  std::vector<std::vector<LookaheadCondition>> lists_;
  std::map<std::vector<LookaheadCondition>, uint32_t> numbers_;
};

// The states of the subset construction, created on demand. A state is a set of items: a
// node, and the list of open lookahead conditions on the way to it. Items are sorted, so a
// set of items has one form and one number. States are never removed; the limits on states
// and set entries bound the memory.
class SubsetStates {
 public:
  struct Expansion {
    std::vector<Edge> edges;  // some of them to new states
    bool accepts;
  };

  SubsetStates(const Nfa& nfa, Budget& budget)
      : nfa_(nfa),
        budget_(budget),
        conditions_(nfa, budget),
        visited_(2 * nfa.nodes.size()),
        state_after_(nfa.nodes.size(), kDead) {
    budget.spend(nfa.nodes.size());
  }

  // The state for texts that begin at a node. `is_at_start`: true if ^ matches there.
  uint32_t add_start(uint32_t node, bool is_at_start) {
    begin_closure();
    close(make_item(node, false, 0), is_at_start);
    return number_of_closure();
  }

  uint32_t size() const { return numbers_.size(); }

  // Valid until the next call.
  const Expansion& expand(uint32_t state) {
    size_t begin = set_begin_[state], end = set_begin_[state + 1];
    expansion_.accepts = false;
    std::array<bool, 257> bounds{};
    for (size_t i = begin; i < end; ++i) {
      const Node& node = nfa_.nodes[node_of(items_[i])];
      if (node.kind == NodeKind::kAccept) {
        expansion_.accepts = expansion_.accepts || conditions_.hold(conditions_of(items_[i]));
        continue;
      }
      for (uint32_t j = node.begin; j < node.begin + node.count; ++j) {
        bounds[nfa_.edges[j].first] = bounds[nfa_.edges[j].last + 1] = true;
      }
      conditions_.mark_bounds(conditions_of(items_[i]), bounds);
    }
    // Between two bounds all bytes lead to the same nodes.
    std::array<uint16_t, 257> interval_of;
    std::array<uint16_t, 257> first_byte;
    uint16_t num_intervals = 0;
    for (uint16_t byte = 0; byte < 257; ++byte) {
      if (byte == 0 || bounds[byte]) first_byte[num_intervals++] = byte;
      interval_of[byte] = uint16_t(num_intervals - 1);
    }
    if (targets_.size() < num_intervals) targets_.resize(num_intervals);
    for (uint16_t i = 0; i < num_intervals; ++i) targets_[i].clear();
    for (size_t i = begin; i < end; ++i) {
      const Node& node = nfa_.nodes[node_of(items_[i])];
      if (node.kind == NodeKind::kAccept) continue;
      for (uint32_t j = node.begin; j < node.begin + node.count; ++j) {
        const Edge& edge = nfa_.edges[j];
        for (uint16_t k = interval_of[edge.first]; k <= interval_of[edge.last]; ++k) {
          uint32_t conditions = conditions_.after(conditions_of(items_[i]), uint8_t(first_byte[k]));
          if (conditions != kDead) targets_[k].push_back(make_item(edge.target, false, conditions));
          budget_.spend(1);
        }
      }
    }
    std::vector<Edge>& edges = expansion_.edges;
    edges.clear();
    for (uint16_t i = 0; i < num_intervals; ++i) {
      if (targets_[i].empty() || first_byte[i] == 256) continue;
      uint16_t next = i + 1 < num_intervals ? first_byte[i + 1] : uint16_t(256);
      uint32_t target = state_of(targets_[i]);
      if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == first_byte[i]) {
        edges.back().last = uint8_t(next - 1);
      } else {
        edges.push_back({uint8_t(first_byte[i]), uint8_t(next - 1), target});
      }
    }
    return expansion_;
  }

 private:
  void begin_closure() {
    ++round_;
    pending_.clear();  // an error may have left nodes here
    visited_with_conditions_.clear();
    closure_.clear();
  }

  bool is_first_visit(Item item) {
    if (conditions_of(item) != 0) return visited_with_conditions_.insert(item).second;
    uint32_t& last = visited_[uint32_t(item)];
    bool is_first = last != round_;
    last = round_;
    return is_first;
  }

  // Adds the items that can be reached without a byte and that take one or accept.
  void close(Item first, bool is_at_start) {
    pending_.push_back(first);
    while (!pending_.empty()) {
      Item item = pending_.back();
      pending_.pop_back();
      if (!is_first_visit(item)) continue;
      budget_.spend(1);
      const Node& node = nfa_.nodes[node_of(item)];
      uint32_t conditions = conditions_of(item);
      switch (node.kind) {
        case NodeKind::kBytes:
          if (!has_ended(item)) closure_.push_back(item);
          break;
        case NodeKind::kAccept:
          closure_.push_back(item);
          break;
        case NodeKind::kSplit:
          for (uint32_t i = node.begin; i < node.begin + node.count; ++i) {
            pending_.push_back(make_item(nfa_.targets[i], has_ended(item), conditions));
          }
          break;
        case NodeKind::kStart:
          if (is_at_start) pending_.push_back(make_item(node.begin, has_ended(item), conditions));
          break;
        case NodeKind::kEnd:
          pending_.push_back(make_item(node.begin, true, conditions));
          break;
        case NodeKind::kLookahead:
          conditions = conditions_.with_lookahead(conditions, node.count, is_at_start);
          if (conditions != kDead) pending_.push_back(make_item(node.begin, has_ended(item), conditions));
          break;
      }
    }
  }

  // The state of the closure's items, a new one if there is none yet.
  uint32_t number_of_closure() {
    std::sort(closure_.begin(), closure_.end());
    uint64_t hash = closure_.size();
    for (Item item : closure_) hash = mix(hash, item);
    auto is_equal = [&](uint32_t state) {
      return set_begin_[state + 1] - set_begin_[state] == closure_.size() &&
             std::equal(closure_.begin(), closure_.end(), items_.begin() + ptrdiff_t(set_begin_[state]));
    };
    auto [state, is_new] = numbers_.find_or_add(hash, is_equal);
    if (!is_new) return state;
    items_.insert(items_.end(), closure_.begin(), closure_.end());
    set_begin_.push_back(items_.size());
    budget_.check_states(numbers_.size());
    if (items_.size() > budget_.limits.set_entries) {
      throw LimitError("pattern_set_entries", items_.size(), budget_.limits.set_entries);
    }
    return state;
  }

  uint32_t state_of(const std::vector<Item>& targets) {
    bool is_known = targets.size() == 1 && conditions_of(targets[0]) == 0;
    if (is_known && state_after_[node_of(targets[0])] != kDead) return state_after_[node_of(targets[0])];
    begin_closure();
    for (Item target : targets) close(target, false);
    uint32_t state = number_of_closure();
    if (is_known) state_after_[node_of(targets[0])] = state;
    return state;
  }

  const Nfa& nfa_;
  Budget& budget_;
  ConditionLists conditions_;
  std::vector<uint32_t> visited_;  // by item without conditions: the last round that visited it
  std::unordered_set<Item> visited_with_conditions_;
  uint32_t round_ = 0;
  std::vector<Item> pending_, closure_;
  std::vector<uint32_t> state_after_;  // by node: the state of its closure alone, inside a text
  // The items of state s are items_[set_begin_[s] ... set_begin_[s + 1]].
  std::vector<Item> items_;
  std::vector<size_t> set_begin_ = {0};
  StateNumbers numbers_;
  std::vector<std::vector<Item>> targets_;
  Expansion expansion_;
};

}  // namespace

Automaton determinize(const Nfa& nfa, uint32_t start, bool is_at_start, Budget& budget) {
  SubsetStates subsets(nfa, budget);
  AutomatonBuilder builder;
  uint32_t first = subsets.add_start(start, is_at_start);
  for (uint32_t state = 0; state < subsets.size(); ++state) {
    const SubsetStates::Expansion& expansion = subsets.expand(state);
    builder.add_state(expansion.accepts, expansion.edges);
  }
  return builder.minimal(first, budget);
}

Automaton compile_regex(const std::string& pattern, const Limits& limits) {
  Budget budget(limits);
  Pattern parts;
  uint32_t whole = parse_regex(pattern, limits, parts);
  Nfa nfa = build_nfa(parts, {whole}, Spelling::kUtf8, budget);
  return determinize(nfa, nfa.start, true, budget);
}

}  // namespace structout::engine
