#include "automata/nfa.h"

#include <unordered_map>
#include <utility>

namespace structout::engine {

namespace {

constexpr uint64_t kEdgesPerNode = 4;  // on average, at most

// Nesting of parts that is allowed for each level of Limits::nesting. The parts of a
// rule count as nested in every reference to it.
constexpr uint32_t kDepthPerGroup = 16;

// Builds from the end: each part is compiled with the node that follows it, so no node has
// to be linked afterwards except where there are loops. Repetitions with bounds are copied
// out: x{2,4} becomes xx(x(x)?)?.
class NfaBuilder {
 public:
  NfaBuilder(const Pattern& pattern, Spelling spelling, Budget& budget)
      : pattern_(pattern),
        spelling_(spelling),
        budget_(budget),
        max_depth_(kDepthPerGroup * budget.limits.nesting),
        graphs_(pattern.sets.size()),
        is_open_(pattern.rules.size()) {}

  Nfa build(const std::vector<uint32_t>& parts) {
    std::vector<uint32_t> entries;
    for (uint32_t part : parts) {
      entries.push_back(compile(part, add({NodeKind::kAccept})));
      nfa_.component_ends.push_back(uint32_t(nfa_.nodes.size()));
    }
    nfa_.start = entries.size() == 1 ? entries[0] : add_split(entries);
    return std::move(nfa_);
  }

 private:
  uint32_t add(Node node) {
    nfa_.nodes.push_back(node);
    budget_.spend(1);
    if (nfa_.nodes.size() > budget_.limits.nodes) {
      throw LimitError("pattern_nodes", nfa_.nodes.size(), budget_.limits.nodes);
    }
    return uint32_t(nfa_.nodes.size() - 1);
  }

  // Adds the nodes of a part, after which matching goes on at `next`. Returns the node
  // where the part begins.
  uint32_t compile(uint32_t index, uint32_t next) {
    budget_.spend(1);  // also for parts that add no node
    if (++depth_ > max_depth_) throw LimitError("part_nesting", depth_, max_depth_);
    uint32_t entry = compile_part(index, next);
    --depth_;
    return entry;
  }

  uint32_t compile_part(uint32_t index, uint32_t next) {
    const Part& part = pattern_.parts[index];
    switch (part.kind) {
      case PartKind::kEmpty:
        return next;
      case PartKind::kSet:
        return compile_set(part.index, next);
      case PartKind::kSequence:
        for (size_t i = part.children.size(); i-- > 0;) next = compile(part.children[i], next);
        return next;
      case PartKind::kAlternatives: {
        std::vector<uint32_t> targets;
        for (uint32_t child : part.children) targets.push_back(compile(child, next));
        return add_split(targets);
      }
      case PartKind::kRepetition:
        return compile_repetition(part, next);
      case PartKind::kStart:
        return add({NodeKind::kStart, next});
      case PartKind::kEnd:
        return add({NodeKind::kEnd, next});
      case PartKind::kLookahead:
        return compile_lookahead(part, next);
      case PartKind::kText:
        return compile_text(pattern_.texts[part.index], next);
      case PartKind::kAutomaton:
        return add_automaton(pattern_.automata[part.index], next);
      case PartKind::kBranching:
        return compile_branching(part, next);
      case PartKind::kIntersection:
      case PartKind::kComplement:
        return add_automaton(combination(index), next);
      case PartKind::kTerminal:
        return compile(part.children[0], next);
      case PartKind::kRule:
        return compile_rule(part.index, next);
      case PartKind::kEmbedded:
      case PartKind::kTokens:
        throw PatternError("tokens and embedded languages are no regular parts", false);
    }
    return next;
  }

  uint32_t add_split(const std::vector<uint32_t>& targets) {
    uint32_t begin = uint32_t(nfa_.targets.size());
    nfa_.targets.insert(nfa_.targets.end(), targets.begin(), targets.end());
    return add({NodeKind::kSplit, begin, uint32_t(targets.size())});
  }

  uint32_t compile_set(uint32_t set, uint32_t next) {
    if (!graphs_[set].is_built) graphs_[set] = {character_graph(pattern_.sets[set], spelling_), true};
    const CharacterGraph& graph = graphs_[set].graph;
    if (graph.empty()) return add({NodeKind::kSplit});  // to nowhere
    uint32_t first_node = uint32_t(nfa_.nodes.size());
    for (const std::vector<Edge>& edges : graph) {
      uint32_t begin = uint32_t(nfa_.edges.size());
      for (const Edge& edge : edges) {
        nfa_.edges.push_back({edge.first, edge.last, edge.target == kExit ? next : first_node + edge.target});
      }
      budget_.spend(edges.size());
      check_edges();
      add({NodeKind::kBytes, begin, uint32_t(edges.size())});
    }
    return uint32_t(nfa_.nodes.size() - 1);
  }

  // A node in front of any number of repetitions.
  uint32_t add_loop(uint32_t child, uint32_t next) {
    uint32_t begin = uint32_t(nfa_.targets.size());
    nfa_.targets.insert(nfa_.targets.end(), {next, next});
    uint32_t loop = add({NodeKind::kSplit, begin, 2});
    uint32_t once = compile(child, loop);
    nfa_.targets[begin] = once;
    return loop;
  }

  void check_edges() const {
    if (nfa_.edges.size() > kEdgesPerNode * budget_.limits.nodes) {
      throw LimitError("pattern_edges", nfa_.edges.size(), kEdgesPerNode * budget_.limits.nodes);
    }
  }

  uint32_t compile_repetition(const Part& part, uint32_t next) {
    uint32_t child = part.children[0];
    if (part.max == 0) return next;
    num_repetitions_ += part.max > 1;
    uint32_t entry = next;
    if (part.max == kUnbounded) {
      uint32_t loop = add_loop(child, next);
      uint32_t once = nfa_.targets[nfa_.nodes[loop].begin];
      entry = part.min == 0 ? loop : once;
      for (uint32_t i = 1; i < part.min && entry != loop; ++i) entry = compile(child, entry);
    } else {
      for (uint32_t i = part.min; i < part.max; ++i) entry = add_split({compile(child, entry), next});
      for (uint32_t i = 0; i < part.min; ++i) entry = compile(child, entry);
    }
    num_repetitions_ -= part.max > 1;
    return entry;
  }

  uint32_t compile_lookahead(const Part& part, uint32_t next) {
    if (num_repetitions_ > 0) throw PatternError("a lookahead inside a repetition is not supported", false);
    // Any bytes may follow a match of the lookahead.
    uint32_t rest_begin = uint32_t(nfa_.targets.size());
    nfa_.targets.insert(nfa_.targets.end(), {0, 0});
    uint32_t rest = add({NodeKind::kSplit, rest_begin, 2});
    uint32_t edge = uint32_t(nfa_.edges.size());
    nfa_.edges.push_back({0, 255, rest});
    nfa_.targets[rest_begin] = add({NodeKind::kBytes, edge, 1});
    nfa_.targets[rest_begin + 1] = add({NodeKind::kAccept});
    uint32_t entry = compile(part.children[0], rest);
    Lookahead lookahead{determinize(nfa_, entry, true, budget_), determinize(nfa_, entry, false, budget_)};
    if (part.is_negative) {
      lookahead = {complement(lookahead.at_start, budget_), complement(lookahead.inside, budget_)};
    }
    nfa_.lookaheads.push_back(std::move(lookahead));
    return add({NodeKind::kLookahead, next, uint32_t(nfa_.lookaheads.size() - 1)});
  }

  uint32_t compile_text(const std::string& text, uint32_t next) {
    for (size_t i = text.size(); i-- > 0;) {
      uint32_t edge = uint32_t(nfa_.edges.size());
      nfa_.edges.push_back({uint8_t(text[i]), uint8_t(text[i]), next});
      next = add({NodeKind::kBytes, edge, 1});
    }
    return next;
  }

  // Adds a node for each state, and a second one where a text may end.
  uint32_t add_automaton(const Automaton& automaton, uint32_t next) {
    uint32_t count = automaton.num_states();
    if (count == 0) return add({NodeKind::kSplit});  // to nowhere
    std::vector<uint32_t> entries(count);
    uint32_t num_nodes = uint32_t(nfa_.nodes.size());
    for (uint32_t state = 0; state < count; ++state) {
      entries[state] = num_nodes + automaton.accepts(state);
      num_nodes += 1 + automaton.accepts(state);
    }
    for (uint32_t state = 0; state < count; ++state) {
      uint32_t begin = uint32_t(nfa_.edges.size());
      for (const Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
        nfa_.edges.push_back({edge->first, edge->last, entries[edge->target]});
      }
      check_edges();
      uint32_t node = add({NodeKind::kBytes, begin, uint32_t(nfa_.edges.size() - begin)});
      if (automaton.accepts(state)) add_split({node, next});
    }
    return entries[0];
  }

  // Adds a node for each state, in front of its bytes and its exits.
  uint32_t compile_branching(const Part& part, uint32_t next) {
    const Branching& branching = pattern_.branchings[part.index];
    uint32_t start_begin = uint32_t(nfa_.targets.size());
    nfa_.targets.push_back(0);
    uint32_t start = add({NodeKind::kSplit, start_begin, 1});
    std::vector<uint32_t> after;
    for (size_t i = 0; i < part.children.size(); ++i) {
      after.push_back(compile(part.children[i], branching.returns[i] ? start : next));
    }
    uint32_t first_node = uint32_t(nfa_.nodes.size());
    for (const Branching::State& state : branching.states) {
      std::vector<uint32_t> targets = {uint32_t(nfa_.nodes.size() + 1)};
      for (uint32_t exit : state.exits) targets.push_back(after[exit]);
      add_split(targets);
      uint32_t begin = uint32_t(nfa_.edges.size());
      for (const Edge& edge : state.edges) nfa_.edges.push_back({edge.first, edge.last, first_node + 2 * edge.target});
      check_edges();
      add({NodeKind::kBytes, begin, uint32_t(state.edges.size())});
    }
    nfa_.targets[start_begin] = first_node;
    return start;
  }

  // The automaton of an intersection or a complement.
  const Automaton& combination(uint32_t index) {
    auto [found, is_new] = combinations_.try_emplace(index);
    Automaton& combined = found->second;
    if (!is_new) return combined;
    const Part& part = pattern_.parts[index];
    for (size_t i = 0; i < part.children.size(); ++i) {
      uint32_t entry = compile(part.children[i], add({NodeKind::kAccept}));
      Automaton operand = determinize(nfa_, entry, false, budget_);
      combined = i == 0 ? std::move(operand) : intersection(combined, operand, budget_);
    }
    if (part.kind == PartKind::kComplement) combined = complement(combined, budget_);
    return combined;
  }

  // A rule that is followed by one node twice is compiled once. So a reference at the
  // end of the rule's own body leads back to its beginning.
  uint32_t compile_rule(uint32_t rule, uint32_t next) {
    auto [found, is_new] = rule_entries_.try_emplace(uint64_t(rule) << 32 | next);
    if (!is_new) return found->second;
    if (is_open_[rule]) throw PatternError("the rule " + pattern_.rules[rule].name + " refers to itself", false);
    is_open_[rule] = true;
    uint32_t begin = uint32_t(nfa_.targets.size());
    nfa_.targets.push_back(0);
    uint32_t entry = found->second = add({NodeKind::kSplit, begin, 1});
    nfa_.targets[begin] = compile(pattern_.rules[rule].body, next);
    is_open_[rule] = false;
    return entry;
  }

  struct CachedGraph {
    CharacterGraph graph;
    bool is_built = false;
  };

  const Pattern& pattern_;
  const Spelling spelling_;
  Budget& budget_;
  const uint32_t max_depth_;
  uint32_t depth_ = 0;
  std::vector<CachedGraph> graphs_;
  std::vector<uint8_t> is_open_;                          // by rule: whether its body is being compiled
  std::unordered_map<uint64_t, uint32_t> rule_entries_;   // by rule and the node after it
  std::unordered_map<uint32_t, Automaton> combinations_;  // by part
  Nfa nfa_;
  uint32_t num_repetitions_ = 0;
};

}  // namespace

Nfa build_nfa(const Pattern& pattern, const std::vector<uint32_t>& parts, Spelling spelling, Budget& budget) {
  return NfaBuilder(pattern, spelling, budget).build(parts);
}

}  // namespace structout::engine
