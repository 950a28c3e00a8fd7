#include "grammar/rules/network.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "automata/components.h"

namespace structout::context_free {

namespace {

// Rules with at most this many states are copied into their callers, unless they are
// recursive.
constexpr size_t kMaxCopiedStates = 40;

}  // namespace

// Builds the automata of all rules: a group of rules that call each other at once, after
// the rules that the group calls.
class NetworkBuilder {
 public:
  NetworkBuilder(const engine::Rules& rules, uint32_t root, const NetworkOptions& options, const engine::Limits& limits,
                 Network& network, std::vector<RuleNfa>* written)
      : rules_(rules),
        pattern_(rules.pattern()),
        options_(options),
        limits_(limits),
        budget_(limits),
        network_(network),
        written_(written) {
    size_t num_rules = first_embedded() + pattern_.embedded.size();
    automata_.resize(num_rules);
    is_nullable_.resize(num_rules);
    is_productive_.resize(num_rules);
    is_recursive_.resize(num_rules);
    std::fill(is_productive_.begin() + first_embedded(), is_productive_.end(), 1);
    build_rules(root);
  }

 private:
  // The root is a rule of its own, whose number follows those of the others.
  uint32_t root_rule() const { return uint32_t(pattern_.rules.size()); }

  // Embedded languages are rules without an automaton, which are never empty.
  uint32_t first_embedded() const { return root_rule() + 1; }

  void build_rules(uint32_t root) {
    std::vector<std::vector<uint32_t>> called(root_rule() + 1);
    std::vector<uint8_t> is_reached(root_rule() + 1);
    std::vector<uint32_t> reached = {root_rule()};
    bodies_.assign(root_rule() + 1, engine::kUndefined);
    for (size_t i = 0; i < reached.size(); ++i) {
      uint32_t rule = reached[i];
      bodies_[rule] = rule == root_rule() ? root : pattern_.rules[rule].body;
      if (bodies_[rule] == engine::kUndefined) {
        throw engine::PatternError("the rule " + pattern_.rules[rule].name + " is not defined", true);
      }
      called[rule] = called_rules(bodies_[rule]);
      for (uint32_t other : called[rule]) {
        if (!std::exchange(is_reached[other], 1)) reached.push_back(other);
      }
    }
    engine::Components components(called);
    std::vector<std::vector<uint32_t>> groups(components.size());
    for (uint32_t rule : reached) groups[components[rule]].push_back(rule);
    for (uint32_t rule : reached) {
      const std::vector<uint32_t>& group = groups[components[rule]];
      is_recursive_[rule] =
          group.size() > 1 || std::find(called[rule].begin(), called[rule].end(), rule) != called[rule].end();
    }
    if (written_ != nullptr) written_->resize(first_embedded());
    for (const std::vector<uint32_t>& group : groups) build_group(group);
    for (uint32_t part : options_.ignored) terminal_of(part, {}, true);
    finish();
  }

  // The rules that a part refers to outside of terminals.
  std::vector<uint32_t> called_rules(uint32_t part) {
    std::set<uint32_t> seen = {part};
    std::vector<uint32_t> pending = {part}, found;
    while (!pending.empty()) {
      const engine::Part& current = pattern_.parts[pending.back()];
      pending.pop_back();
      budget_.spend(1);
      if (current.kind == engine::PartKind::kRule) found.push_back(current.index);
      if (current.kind == engine::PartKind::kTerminal) continue;
      for (uint32_t child : current.children) {
        if (seen.insert(child).second) pending.push_back(child);
      }
    }
    return found;
  }

  // Builds rules that call each other.
  void build_group(const std::vector<uint32_t>& group) {
    std::vector<RuleNfa> nfas(group.size());
    for (size_t i = 0; i < group.size(); ++i) {
      nfas[i].set_accepting(add(nfas[i], bodies_[group[i]], RuleNfa::kStart));
    }
    if (written_ != nullptr) {
      for (size_t i = 0; i < group.size(); ++i) (*written_)[group[i]] = std::move(nfas[i]);
      return;
    }
    // Least fixpoints: the rules that match the empty text, then those that have a text at
    // all.
    auto mark_all = [&](std::vector<uint8_t>& marks, auto holds) {
      for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (size_t i = 0; i < group.size(); ++i) {
          if (marks[group[i]] || !holds(nfas[i])) continue;
          marks[group[i]] = has_changed = true;
        }
      }
    };
    mark_all(is_nullable_, [&](const RuleNfa& nfa) { return nfa.matches_empty(is_nullable_); });
    for (RuleNfa& nfa : nfas) nfa.skip_calls(is_nullable_);
    mark_all(is_productive_, [&](const RuleNfa& nfa) { return nfa.has_text(is_productive_); });
    std::vector<RuleAutomaton> automata;
    for (RuleNfa& nfa : nfas) {
      nfa.remove_dead_ends(is_productive_);
      automata.push_back(nfa.determinize(budget_));
    }
    remove_left_recursion(group, automata, budget_);
    for (size_t i = 0; i < group.size(); ++i) automata_[group[i]] = std::move(automata[i]);
  }

  // Adds a part after a node. Returns the node after it.
  uint32_t add(RuleNfa& nfa, uint32_t index, uint32_t node) {
    budget_.spend(1);
    if (nfa.num_nodes() > limits_.nodes) throw engine::LimitError("pattern_nodes", nfa.num_nodes(), limits_.nodes);
    const engine::Part& part = pattern_.parts[index];
    if (part.kind == engine::PartKind::kText) return add_text(nfa, pattern_.texts[part.index], node);
    if (part.kind == engine::PartKind::kBranching) return add_branching(nfa, part, node);
    if (is_regular(index)) return add_regular(nfa, index, node);
    switch (part.kind) {
      case engine::PartKind::kTerminal: {
        uint32_t terminal = terminal_of(part.children[0], pattern_.terminals[part.index], false);
        uint32_t end = nfa.add_node();
        const Terminal& read = network_.terminals_[terminal];
        bool may_be_empty = read.automaton.num_states() != 0 && read.automaton.accepts(0);
        if (may_be_empty && !read.options.ends_at_limit_only) nfa.add_empty(node, end);
        bool ends_at_once = may_be_empty && read.options.is_lazy;
        bool may_be_read = read.automaton.num_states() != 0 && !ends_at_once && read.options.max_tokens > 0;
        if (may_be_read) nfa.add_edge(node, {terminal, terminal, end});
        return end;
      }
      case engine::PartKind::kRule: {
        uint32_t rule = part.index, end;
        if (written_ == nullptr && !is_recursive_[rule] && automata_[rule].size() <= kMaxCopiedStates) {
          end = nfa.add_automaton(node, automata_[rule]);
          if (is_nullable_[rule]) nfa.add_empty(node, end);
        } else {
          end = nfa.add_node();
          nfa.add_call(node, {rule, end});
        }
        return end;
      }
      case engine::PartKind::kEmbedded: {
        uint32_t end = nfa.add_node();
        nfa.add_call(node, {first_embedded() + part.index, end});
        return end;
      }
      case engine::PartKind::kTokens: {
        uint32_t end = nfa.add_node();
        for (auto [first, last] : pattern_.tokens[part.index]) {
          nfa.add_edge(node, {kFirstToken + first, kFirstToken + last, end});
        }
        return end;
      }
      case engine::PartKind::kSequence:
        for (uint32_t child : part.children) node = add(nfa, child, node);
        return node;
      case engine::PartKind::kAlternatives: {
        uint32_t end = nfa.add_node();
        for (uint32_t child : part.children) nfa.add_empty(add(nfa, child, node), end);
        return end;
      }
      case engine::PartKind::kRepetition:
        return add_repetition(nfa, part, node);
      default:  // the others are regular
        throw engine::PatternError("rules, tokens and embedded languages are not supported below & and ~", false);
    }
  }

  uint32_t add_text(RuleNfa& nfa, const std::string& text, uint32_t node) {
    for (char character : text) {
      uint8_t byte = uint8_t(character);
      uint32_t next = nfa.add_node();
      visit_allowed({byte, byte, 0}, [&](uint8_t first, uint8_t last) { nfa.add_edge(node, {first, last, next}); });
      node = next;
    }
    return node;
  }

  uint32_t add_branching(RuleNfa& nfa, const engine::Part& part, uint32_t node) {
    const engine::Branching& branching = pattern_.branchings[part.index];
    uint32_t base = nfa.num_nodes(), end = base + uint32_t(branching.states.size());
    for (uint32_t i = base; i <= end; ++i) nfa.add_node();
    nfa.add_empty(node, base);
    std::vector<uint32_t> doors;
    for (size_t i = 0; i < part.children.size(); ++i) {
      doors.push_back(nfa.add_node());
      nfa.add_empty(add(nfa, part.children[i], doors[i]), branching.returns[i] ? base : end);
    }
    for (uint32_t state = 0; state < branching.states.size(); ++state) {
      const engine::Branching::State& from = branching.states[state];
      budget_.spend(from.edges.size());
      for (uint32_t exit : from.exits) nfa.add_empty(base + state, doors[exit]);
      for (const engine::Edge& edge : from.edges) {
        visit_allowed(
            edge, [&](uint8_t first, uint8_t last) { nfa.add_edge(base + state, {first, last, base + edge.target}); });
      }
    }
    return end;
  }

  uint32_t add_repetition(RuleNfa& nfa, const engine::Part& part, uint32_t node) {
    uint32_t child = part.children[0];
    for (uint32_t i = 0; i < part.min; ++i) node = add(nfa, child, node);
    uint32_t end = nfa.add_node();
    nfa.add_empty(node, end);
    if (part.max == engine::kUnbounded) {
      uint32_t loop = nfa.add_node();  // nothing but repetitions leads back to it
      nfa.add_empty(node, loop);
      uint32_t after = add(nfa, child, loop);
      nfa.add_empty(after, loop);
      nfa.add_empty(after, end);
      return end;
    }
    for (uint32_t i = part.min; i < part.max; ++i) {
      node = add(nfa, child, node);
      nfa.add_empty(node, end);
    }
    return end;
  }

  // True if a part has no rules, terminals, embedded languages or tokens, so bytes alone.
  bool is_regular(uint32_t index) {
    auto found = is_regular_.find(index);
    if (found != is_regular_.end()) return found->second;
    const engine::Part& part = pattern_.parts[index];
    bool is_other = part.kind == engine::PartKind::kRule || part.kind == engine::PartKind::kTerminal ||
                    part.kind == engine::PartKind::kEmbedded || part.kind == engine::PartKind::kTokens;
    bool result = !is_other &&
                  std::all_of(part.children.begin(), part.children.end(), [this](uint32_t i) { return is_regular(i); });
    return is_regular_[index] = result;
  }

  uint32_t add_regular(RuleNfa& nfa, uint32_t index, uint32_t node) {
    auto [found, is_new] = regular_.try_emplace(index);
    if (is_new) found->second = rules_.compile(index, limits_);
    const engine::Automaton& automaton = found->second;
    uint32_t base = nfa.num_nodes(), end = base + automaton.num_states();
    for (uint32_t i = base; i <= end; ++i) nfa.add_node();
    budget_.spend(automaton.num_edges());
    if (automaton.num_states() != 0) nfa.add_empty(node, base);
    for (uint32_t state = 0; state < automaton.num_states(); ++state) {
      if (automaton.accepts(state)) nfa.add_empty(base + state, end);
      for (const engine::Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
        visit_allowed(*edge, [&](uint8_t first, uint8_t last) {
          nfa.add_edge(base + state, {first, last, base + edge->target});
        });
      }
    }
    return end;
  }

  // Calls visit(first, last) for the parts of an edge that consist of allowed bytes.
  template <typename Visit>
  void visit_allowed(const engine::Edge& edge, Visit visit) const {
    for (uint32_t first = edge.first; first <= edge.last; ++first) {
      if (!options_.allowed_bytes[first]) continue;
      uint32_t last = first;
      while (last < edge.last && options_.allowed_bytes[last + 1]) ++last;
      visit(uint8_t(first), uint8_t(last));
      first = last;
    }
  }

  // The number of a terminal. Equal ones have one number.
  uint32_t terminal_of(uint32_t part, const engine::TerminalOptions& options, bool is_ignored) {
    auto [found, is_new] = automata_of_terminals_.try_emplace(part);
    if (is_new) found->second = rules_.compile(part, limits_);
    Terminal terminal{found->second, options, is_ignored};
    const engine::Part& definition = pattern_.parts[part];
    if (definition.kind == engine::PartKind::kRule) terminal.priority = pattern_.rules[definition.index].priority;
    std::vector<Terminal>& terminals = network_.terminals_;
    auto same = std::find(terminals.begin(), terminals.end(), terminal);
    uint32_t number = uint32_t(same - terminals.begin());
    if (same == terminals.end()) terminals.push_back(std::move(terminal));
    return number;
  }

  // Numbers the rules that the root still calls, and hands them over.
  void finish() {
    network_.has_lexer_ = options_.has_lexer;
    network_.ignores_once_ = options_.ignores_once;
    for (const Terminal& terminal : network_.terminals_) {
      if (terminal.options.max_tokens != engine::kUnbounded) network_.has_token_limits_ = true;
      if (!terminal.options.stop.empty() && !pattern_.embedded.empty()) {
        throw engine::PatternError("stop= beside %json is not supported: write suffix=", false);
      }
    }
    network_.allowed_bytes_ = options_.allowed_bytes;
    if (written_ != nullptr) {
      network_.embedded_ = pattern_.embedded;
      return;
    }
    network_.matches_empty_ = is_nullable_[root_rule()];
    network_.is_empty_ = !is_productive_[root_rule()] && !network_.matches_empty_;
    std::vector<uint32_t> number(root_rule() + 1, kNone), kept = {root_rule()};
    number[root_rule()] = 0;
    std::vector<RuleAutomaton> automata;
    for (size_t i = 0; i < kept.size(); ++i) {
      RuleAutomaton automaton = automata_[kept[i]];
      for (RuleState& state : automaton) {
        auto is_embedded = [this](const Call& call) { return call.rule >= first_embedded(); };
        auto first = std::find_if(state.calls.begin(), state.calls.end(), is_embedded);  // they are the last
        for (auto call = first; call != state.calls.end(); ++call) {
          state.embedded.push_back({number_of_embedded(call->rule - first_embedded()), call->target});
        }
        state.calls.erase(first, state.calls.end());
        for (Call& call : state.calls) {
          if (number[call.rule] == kNone) {
            number[call.rule] = uint32_t(kept.size());
            kept.push_back(call.rule);
          }
          call.rule = number[call.rule];
        }
      }
      automata.push_back(std::move(automaton));
    }
    network_.add_states(automata);
    network_.rank_rules(automata);
  }

  // Numbers the embedded languages that are still called.
  uint32_t number_of_embedded(uint32_t index) {
    auto [found, is_new] = embedded_numbers_.try_emplace(index, uint32_t(network_.embedded_.size()));
    if (is_new) network_.embedded_.push_back(pattern_.embedded[index]);
    return found->second;
  }

  const engine::Rules& rules_;
  const engine::Pattern& pattern_;
  const NetworkOptions& options_;
  const engine::Limits& limits_;
  engine::Budget budget_;
  Network& network_;
  std::vector<RuleNfa>* const written_;
  std::vector<uint32_t> bodies_;         // by rule: its part
  std::vector<RuleAutomaton> automata_;  // by rule
  std::vector<uint8_t> is_nullable_, is_productive_, is_recursive_;
  std::map<uint32_t, bool> is_regular_;                          // by part
  std::map<uint32_t, engine::Automaton> regular_;                // by part
  std::map<uint32_t, engine::Automaton> automata_of_terminals_;  // by part
  std::map<uint32_t, uint32_t> embedded_numbers_;
};

Network::Network(const engine::Rules& rules, uint32_t root, const NetworkOptions& options, const engine::Limits& limits,
                 std::vector<RuleNfa>* written) {
  NetworkBuilder(rules, root, options, limits, *this, written);
}

void Network::add_states(const std::vector<RuleAutomaton>& automata) {
  std::array<bool, 257> bounds{};
  for (const RuleAutomaton& automaton : automata) {
    starts_.push_back(num_states());
    for (const RuleState& state : automaton) {
      bool reads_symbols = !state.edges.empty() || !state.embedded.empty();
      bool is_end = state.is_accepting && !reads_symbols && state.calls.empty();
      uint32_t begin = uint32_t(calls_.size()), embedded_begin = uint32_t(embedded_calls_.size());
      uint32_t tokens_begin = uint32_t(token_edges_.size());
      for (const Call& call : state.calls) calls_.push_back({call.rule, starts_.back() + call.target});
      for (const Call& call : state.embedded) embedded_calls_.push_back({call.rule, starts_.back() + call.target});
      for (const SymbolEdge& edge : state.edges) {
        if (edge.first >= kFirstToken) {
          token_edges_.push_back({edge.first, edge.last, starts_.back() + edge.target});
        } else if (!has_lexer_) {
          bounds[edge.first] = bounds[edge.last + 1] = true;
        }
      }
      states_.push_back({state.is_accepting, is_end, reads_symbols, begin, uint32_t(calls_.size()), embedded_begin,
                         uint32_t(embedded_calls_.size()), tokens_begin, uint32_t(token_edges_.size())});
    }
  }
  num_classes_ = uint32_t(terminals_.size());
  if (!has_lexer_) {
    num_classes_ = 1;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (byte > 0 && bounds[byte]) ++num_classes_;
      class_of_byte_[byte] = uint8_t(num_classes_ - 1);
    }
  }
  next_.assign(size_t(num_states()) * num_classes_, kNone);
  uint32_t number = 0;
  for (size_t rule = 0; rule < automata.size(); ++rule) {
    for (const RuleState& state : automata[rule]) {
      for (const SymbolEdge& edge : state.edges) {
        if (edge.first >= kFirstToken) break;  // they are the last
        uint32_t first = has_lexer_ ? edge.first : class_of_byte_[edge.first];
        uint32_t last = has_lexer_ ? edge.last : class_of_byte_[edge.last];
        for (uint32_t symbol = first; symbol <= last; ++symbol) {
          next_[size_t(number) * num_classes_ + symbol] = starts_[rule] + edge.target;
        }
      }
      ++number;
    }
  }
}

uint32_t Network::next_of_token(uint32_t state, uint32_t token) const {
  for (const SymbolEdge* edge = tokens_begin(state); edge < tokens_end(state); ++edge) {
    if (token + kFirstToken <= edge->last) return token + kFirstToken >= edge->first ? edge->target : kNone;
  }
  return kNone;
}

void Network::rank_rules(const std::vector<RuleAutomaton>& automata) {
  std::vector<std::vector<uint32_t>> first_calls(num_rules()), all_calls(num_rules());
  for (uint32_t rule = 0; rule < num_rules(); ++rule) {
    for (const Call& call : automata[rule][0].calls) first_calls[rule].push_back(call.rule);
    for (const RuleState& state : automata[rule]) {
      for (const Call& call : state.calls) all_calls[rule].push_back(call.rule);
    }
  }
  // A call at the end of a rule leaves nothing on the stack, so it alone makes no stack
  // unbounded.
  engine::Components cycles(all_calls);
  for (uint32_t rule = 0; rule < num_rules(); ++rule) {
    for (const RuleState& state : automata[rule]) {
      for (const Call& call : state.calls) {
        is_recursive_ = is_recursive_ || (cycles[call.rule] == cycles[rule] && !is_end(starts_[rule] + call.target));
      }
    }
  }
  engine::Components order(first_calls);
  for (uint32_t rule = 0; rule < num_rules(); ++rule) ranks_.push_back(order.size() - 1 - order[rule]);
  rule_of_rank_.resize(num_rules());
  for (uint32_t rule = 0; rule < num_rules(); ++rule) rule_of_rank_[ranks_[rule]] = rule;
}

size_t Network::memory_bytes() const {
  size_t bytes = states_.capacity() * sizeof(State) + next_.capacity() * sizeof(uint32_t) +
                 (calls_.capacity() + embedded_calls_.capacity()) * sizeof(Call) +
                 token_edges_.capacity() * sizeof(SymbolEdge) + 3 * starts_.capacity() * sizeof(uint32_t);
  for (const Terminal& terminal : terminals_) bytes += terminal.automaton.memory_bytes();
  return bytes;
}

}  // namespace structout::context_free
