// A grammar as a recursive transition network: an automaton for each rule.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "automata/automaton.h"
#include "automata/rules.h"
#include "base/limits.h"
#include "grammar/rules/rule_automaton.h"
#include "language/embedded.h"

namespace structout::context_free {

// A regular language whose texts, the lexemes, a lexer reads as one symbol.
struct Terminal {
  engine::Automaton automaton;
  engine::TerminalOptions options{};
  bool is_ignored = false;  // may stand between others
  int priority = 0;         // of several terminals that match the same lexeme, the highest wins
  bool operator==(const Terminal& other) const {
    return options == other.options && is_ignored == other.is_ignored && priority == other.priority &&
           automaton == other.automaton;
  }
};

struct NetworkOptions {
  // True if symbols are terminals; otherwise they are bytes.
  bool has_lexer = false;

  // Parts that may stand between terminals. `ignores_once`: at most one of them, not
  // several in a row.
  std::vector<uint32_t> ignored;
  bool ignores_once = false;

  // The bytes that texts may consist of. Terminals keep their texts with other bytes, and
  // the lexer follows those, too.
  std::array<bool, 256> allowed_bytes;

  NetworkOptions() { allowed_bytes.fill(true); }
};

// The symbols of embedded languages, and back. They end just below kFirstToken, so no
// terminal and no token has such a number.
constexpr uint32_t symbol_of_embedded(uint32_t language) { return kFirstToken - 1 - language; }
constexpr uint32_t embedded_of_symbol(uint32_t symbol) { return kFirstToken - 1 - symbol; }

// A recursive transition network (Woods, "Transition network grammars for natural language
// analysis", 1970): each rule is a deterministic automaton over symbols and calls of rules.
// Invariants: no rule matches the empty text, none is left recursive, and every path leads
// to a text. Small rules that are not recursive are copied into their callers. States of
// all rules share one numbering.
class Network {
 public:
  // `written`: if not null, receives the rules as they are written, those of the pattern,
  // then the root's. They call embedded languages by the numbers that follow. The network
  // then has only their terminals and languages, and no states.
  //
  // Throws PatternError and LimitError.
  Network(const engine::Rules& rules, uint32_t root, const NetworkOptions& options, const engine::Limits& limits,
          std::vector<RuleNfa>* written = nullptr);

  bool has_lexer() const { return has_lexer_; }
  bool ignores_once() const { return ignores_once_; }
  bool has_token_limits() const { return has_token_limits_; }  // true if a terminal has max_tokens
  bool is_empty() const { return is_empty_; }                  // true if there is no text
  bool is_recursive() const { return is_recursive_; }          // true if stacks have no bound
  bool matches_empty() const { return matches_empty_; }        // true if the empty text belongs to it
  uint32_t num_states() const { return uint32_t(states_.size()); }
  uint32_t num_rules() const { return uint32_t(starts_.size()); }

  // The state after a symbol, or kNone.
  uint32_t next(uint32_t state, uint32_t symbol) const {
    return next_[size_t(state) * num_classes_ + (has_lexer_ ? symbol : class_of_byte_[symbol])];
  }
  uint32_t next_of_token(uint32_t state, uint32_t token) const;
  // Bytes of one class lead to the same states. Only without a lexer.
  uint32_t num_byte_classes() const { return num_classes_; }
  uint8_t byte_class(uint8_t byte) const { return class_of_byte_[byte]; }

  bool is_accepting(uint32_t state) const { return states_[state].is_accepting; }

  // True if the rule ends in the state, and cannot continue. A call that leads to such a
  // state is a tail call, which leaves nothing on the stack.
  bool is_end(uint32_t state) const { return states_[state].is_end; }

  // True if the state itself reads a symbol or an embedded text, apart from calls of rules
  // and the end of its rule.
  bool reads_symbols(uint32_t state) const { return states_[state].reads_symbols; }
  const Call* calls_begin(uint32_t state) const { return calls_.data() + states_[state].calls_begin; }
  const Call* calls_end(uint32_t state) const { return calls_.data() + states_[state].calls_end; }

  bool may_consist_of(uint8_t byte) const { return allowed_bytes_[byte]; }  // true if texts may contain it

  // Calls of embedded languages, by their numbers.
  const Call* embedded_begin(uint32_t state) const { return embedded_calls_.data() + states_[state].embedded_begin; }
  const Call* embedded_end(uint32_t state) const { return embedded_calls_.data() + states_[state].embedded_end; }

  // The tokens that the state reads by their ids: symbols from kFirstToken on.
  const SymbolEdge* tokens_begin(uint32_t state) const { return token_edges_.data() + states_[state].tokens_begin; }
  const SymbolEdge* tokens_end(uint32_t state) const { return token_edges_.data() + states_[state].tokens_end; }
  bool has_tokens() const { return !token_edges_.empty(); }

  const std::vector<std::shared_ptr<engine::EmbeddedLanguage>>& embedded() const { return embedded_; }

  uint32_t root() const { return 0; }
  uint32_t start(uint32_t rule) const { return starts_[rule]; }

  // The rule that a state belongs to.
  uint32_t rule_of(uint32_t state) const {
    return uint32_t(std::upper_bound(starts_.begin(), starts_.end(), state) - starts_.begin() - 1);
  }

  // Ranks order the rules: one that begins with a call of another has a lower rank than the
  // called one.
  uint32_t rank(uint32_t rule) const { return ranks_[rule]; }
  uint32_t rule_of_rank(uint32_t rank) const { return rule_of_rank_[rank]; }

  const std::vector<Terminal>& terminals() const { return terminals_; }
  size_t memory_bytes() const;

 private:
  friend class NetworkBuilder;
  struct State {
    bool is_accepting, is_end, reads_symbols;
    uint32_t calls_begin, calls_end, embedded_begin, embedded_end, tokens_begin, tokens_end;
  };

  // `automata`: of each rule, the root's first.
  void add_states(const std::vector<RuleAutomaton>& automata);
  void rank_rules(const std::vector<RuleAutomaton>& automata);

  bool has_lexer_, ignores_once_, has_token_limits_ = false, is_empty_ = false, is_recursive_ = false,
                                  matches_empty_ = false;
  uint32_t num_classes_ = 0;  // of symbols that all states treat alike
  std::array<uint8_t, 256> class_of_byte_{};
  std::array<bool, 256> allowed_bytes_{};
  std::vector<State> states_;
  std::vector<uint32_t> next_;  // by state and class
  std::vector<Call> calls_, embedded_calls_;
  std::vector<SymbolEdge> token_edges_;
  std::vector<uint32_t> starts_, ranks_, rule_of_rank_;
  std::vector<Terminal> terminals_;
  std::vector<std::shared_ptr<engine::EmbeddedLanguage>> embedded_;
};

// Calls visit(symbol, target) for the embedded texts and the tokens that a state reads.
template <typename Visit>
void visit_others(const Network& network, uint32_t state, Visit visit) {
  for (const Call* call = network.embedded_begin(state); call < network.embedded_end(state); ++call) {
    visit(symbol_of_embedded(call->rule), call->target);
  }
  for (auto edge = network.tokens_begin(state); edge < network.tokens_end(state); ++edge) {
    visit(edge->first, edge->target);
  }
}

}  // namespace structout::context_free
