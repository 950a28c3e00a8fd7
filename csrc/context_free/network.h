// A grammar as a recursive transition network: an automaton for each rule.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "context_free/rule_automaton.h"
#include "masks/embedded.h"
#include "regular/automaton.h"
#include "regular/rules.h"

namespace structout::context_free {

// What a lexer reads as one symbol.
struct Terminal {
  engine::Automaton automaton;
  engine::TerminalOptions options{};
  bool is_ignored = false;  // may stand between others
  int priority = 0;         // of several that read the same text, those of the highest count
  bool operator==(const Terminal& other) const {
    return options == other.options && is_ignored == other.is_ignored && priority == other.priority &&
           automaton == other.automaton;
  }
};

struct NetworkOptions {
  // Whether symbols are terminals, instead of bytes.
  bool has_lexer = false;

  // Parts that may stand between terminals. `ignores_once`: one of them, not several.
  std::vector<uint32_t> ignored;
  bool ignores_once = false;

  // The bytes that texts may consist of. A lexer follows all texts of terminals, also those
  // that nobody can write.
  std::array<bool, 256> allowed_bytes;

  NetworkOptions() { allowed_bytes.fill(true); }
};

// Tells embedded languages from terminals and tokens, and back. No terminal has such a
// number.
constexpr uint32_t symbol_of_embedded(uint32_t language) { return kFirstToken - 1 - language; }
constexpr uint32_t embedded_of_symbol(uint32_t symbol) { return kFirstToken - 1 - symbol; }

// Rules without empty texts, without left recursion and without ways that lead to no
// text. States of all rules are numbered together.
class Network {
 public:
  // `written`: gets the rules as they are written instead, those of the pattern, then the
  // root's; embedded languages are called by the numbers that follow. The network has nothing
  // but their terminals and languages then.
  //
  // Throws PatternError and LimitError.
  Network(const engine::Rules& rules, uint32_t root, const NetworkOptions& options, const engine::Limits& limits,
          std::vector<RuleNfa>* written = nullptr);

  bool has_lexer() const { return has_lexer_; }
  bool ignores_once() const { return ignores_once_; }
  bool has_token_limits() const { return has_token_limits_; }  // whether a terminal has max_tokens
  bool is_empty() const { return is_empty_; }                  // whether there is no text
  bool is_recursive() const { return is_recursive_; }          // whether stacks have no bound
  bool matches_empty() const { return matches_empty_; }        // whether the empty text belongs to it
  uint32_t num_states() const { return uint32_t(states_.size()); }
  uint32_t num_rules() const { return uint32_t(starts_.size()); }

  // The state after a symbol, or kNone.
  uint32_t next(uint32_t state, uint32_t symbol) const {
    return next_[size_t(state) * num_classes_ + (has_lexer_ ? symbol : class_of_byte_[symbol])];
  }
  uint32_t next_of_token(uint32_t state, uint32_t token) const;
  // Bytes of one class lead to the same states. Without a lexer.
  uint32_t num_byte_classes() const { return num_classes_; }
  uint8_t byte_class(uint8_t byte) const { return class_of_byte_[byte]; }

  bool is_accepting(uint32_t state) const { return states_[state].is_accepting; }

  // Whether a rule ends in the state, and cannot go on.
  bool is_end(uint32_t state) const { return states_[state].is_end; }

  // Whether anything may follow in the state before a call or the end of the rule.
  bool reads_symbols(uint32_t state) const { return states_[state].reads_symbols; }
  const Call* calls_begin(uint32_t state) const { return calls_.data() + states_[state].calls_begin; }
  const Call* calls_end(uint32_t state) const { return calls_.data() + states_[state].calls_end; }

  bool may_consist_of(uint8_t byte) const { return allowed_bytes_[byte]; }  // whether texts may

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

  // A rule that begins with another has a lower rank.
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
