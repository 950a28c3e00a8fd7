#include "grammar/token_masks/stack_endings.h"

#include <algorithm>

namespace structout::context_free {

using engine::Ending;

namespace {

// The bytes of the shortest lexeme, or its rest from a state on, and one that separates it
// from the next.
uint32_t cost_of_lexeme(const engine::Automaton& automaton, uint32_t from = 0) {
  std::vector<uint32_t> states = {from}, lengths(automaton.num_states(), kNone);
  if (lengths.empty()) return kNone;
  lengths[from] = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    if (automaton.accepts(states[i])) return lengths[states[i]] + 1;
    for (const engine::Edge* edge = automaton.begin(states[i]); edge < automaton.end(states[i]); ++edge) {
      if (lengths[edge->target] != kNone) continue;
      lengths[edge->target] = lengths[states[i]] + 1;
      states.push_back(edge->target);
    }
  }
  return kNone;
}

}  // namespace

StackEndings::StackEndings(const Network& network, const Stacks& stacks, const engine::VocabularyTrie& vocabulary,
                           const std::function<uint32_t(uint32_t language)>& cost_of_language)
    : network_(network),
      stacks_(stacks),
      vocabulary_(vocabulary),
      costs_of_languages_([&] {
        std::vector<uint32_t> costs;
        for (uint32_t i = 0; i < network.embedded().size(); ++i) costs.push_back(cost_of_language(i));
        return costs;
      }()),
      costs_of_terminals_([&] {
        std::vector<uint32_t> costs;
        for (const Terminal& terminal : network.terminals()) costs.push_back(cost_of_lexeme(terminal.automaton));
        return costs;
      }()),
      least_(least_to_rule_end(network, [this](uint32_t symbol) { return cost(symbol); })),
      growth_(computed_growth()),
      endings_(vocabulary),
      parts_(network.num_states()) {}

uint32_t StackEndings::cost(uint32_t symbol) const {
  if (symbol >= kFirstToken) return 1;
  uint32_t language = embedded_of_symbol(symbol);
  if (language < costs_of_languages_.size()) return costs_of_languages_[language];
  return network_.has_lexer() ? costs_of_terminals_[symbol] : 1;
}

template <typename Visit>
void StackEndings::visit_edges(uint32_t state, Visit visit) const {
  uint32_t num_symbols = network_.has_lexer() ? uint32_t(network_.terminals().size()) : 256;
  for (uint32_t i = 0; i < num_symbols; ++i) {
    uint32_t symbol = network_.has_lexer() ? i : (i + '0') % 256, next = network_.next(state, symbol);
    if (next != kNone) visit(symbol, next);
  }
  visit_others(network_, state, visit);
}

// Visits the bytes that a symbol may begin with: itself, or those of a terminal.
template <typename Visit>
void StackEndings::visit_first_bytes(uint32_t symbol, Visit visit) const {
  if (!network_.has_lexer()) {
    if (symbol < 256) visit(uint8_t(symbol));
  } else if (symbol < network_.terminals().size()) {
    const engine::Automaton& automaton = network_.terminals()[symbol].automaton;
    for (const engine::Edge* edge = automaton.begin(0); edge < automaton.end(0); ++edge) {
      for (uint32_t byte = edge->first; byte <= edge->last; ++byte) visit(uint8_t(byte));
    }
  }
}

// A symbol replaces the top of a stack by another state, or returns to a state below; then
// calls put other tops above. Each of these may add bytes.
uint32_t StackEndings::computed_growth() const {
  std::vector<uint32_t> above(network_.num_states(), 0);  // by state: what calls may add
  auto add_calls = [&](uint32_t state) {
    uint32_t most = least_[state];
    for (const Call* call = network_.calls_begin(state); call < network_.calls_end(state); ++call) {
      uint32_t start = network_.start(call->rule);
      uint32_t called = cost_sum(cost_sum(least_[start], above[start]), least_[call->target]);
      if (called != kNone) most = std::max(most, called);
    }
    above[state] = most - least_[state];
  };
  for (uint32_t rank = network_.num_rules(); rank-- > 0;) add_calls(network_.start(network_.rule_of_rank(rank)));
  uint32_t above_return = 0;
  for (uint32_t state = 0; state < network_.num_states(); ++state) {
    if (least_[state] == kNone) continue;
    add_calls(state);
    above_return = std::max(above_return, above[state]);
  }
  uint32_t of_byte[256] = {}, of_symbol = 0;
  for (uint32_t state = 0; state < network_.num_states(); ++state) {
    if (least_[state] == kNone) continue;
    visit_edges(state, [&](uint32_t symbol, uint32_t next) {
      if (least_[next] == kNone) return;
      uint32_t after = least_[next] + above[next];
      if (network_.is_accepting(next)) after = std::max(after, above_return);
      uint32_t growth = after > least_[state] ? after - least_[state] : 0;
      of_symbol = std::max(of_symbol, growth);
      visit_first_bytes(symbol, [&](uint8_t byte) { of_byte[byte] = std::max(of_byte[byte], growth); });
    });
  }
  std::vector<uint32_t> sums(vocabulary_.max_depth() + 1, 0);
  uint32_t of_token = 0;  // of all symbols that begin in one
  vocabulary_.visit_below(engine::VocabularyTrie::kRoot, [&](uint32_t, uint8_t byte, uint32_t depth) {
    sums[depth + 1] = sums[depth] + of_byte[byte];
    of_token = std::max(of_token, sums[depth + 1]);
    return true;
  });
  if (!network_.has_lexer()) return std::max(of_symbol, of_token);
  uint32_t of_lexeme = 0;  // what completes the one that the token leaves unfinished
  for (const Terminal& terminal : network_.terminals()) {
    for (uint32_t state = 0; state < terminal.automaton.num_states(); ++state) {
      uint32_t cost = cost_of_lexeme(terminal.automaton, state);
      if (cost != kNone) of_lexeme = std::max(of_lexeme, cost);
    }
  }
  return of_symbol + of_token + of_lexeme;  // the first symbol may have begun before the token
}

const std::vector<StackEndings::Part>& StackEndings::parts(uint32_t state) {
  std::vector<Part>& parts = parts_[state];
  if (!parts.empty() || network_.is_accepting(state)) return parts;
  std::vector<uint32_t> left = {state};  // the states whose endings still come
  while (!left.empty()) {
    uint32_t at = left.back();
    left.pop_back();
    if (network_.is_accepting(at)) continue;
    bool is_found = false;
    visit_edges(at, [&](uint32_t symbol, uint32_t next) {
      uint32_t of_symbol = cost(symbol);
      if (is_found || cost_sum(of_symbol, least_[next]) != least_[at]) return;
      is_found = true;
      left.push_back(next);
      if (symbol >= 256) {
        parts.push_back({"", of_symbol});
      } else if (parts.empty() || parts.back().bytes.empty()) {
        parts.push_back({std::string(1, char(symbol)), 0});
      } else {
        parts.back().bytes.push_back(char(symbol));
      }
    });
    for (const Call* call = network_.calls_begin(at); !is_found && call < network_.calls_end(at); ++call) {
      uint32_t start = network_.start(call->rule);
      if (cost_sum(least_[start], least_[call->target]) != least_[at]) continue;
      is_found = true;
      left.push_back(call->target);
      left.push_back(start);
    }
  }
  for (const Part& part : parts) bytes_of_parts_ += sizeof part + part.bytes.size();
  return parts;
}

const StackEndings::Known& StackEndings::known(GssNode node) {
  if (known_.size() <= node) known_.resize(stacks_.num_nodes());
  std::vector<GssNode> pending = {node};
  while (!pending.empty()) {
    GssNode at = pending.back();
    uint32_t most = 0;
    bool is_ready = true;
    std::vector<const Ending*> endings;
    for (const StackTop* top = stacks_.begin(at); top < stacks_.end(at); ++top) {
      if (top->state == kEndOfText) {
        endings.push_back(nullptr);
      } else if (known_[top->below].most == kNone) {
        pending.push_back(top->below);
        is_ready = false;
      } else if (least_[top->state] != kNone) {
        const Ending* ending = known_[top->below].ending;
        most = std::max(most, cost_sum(least_[top->state], known_[top->below].most));
        if (network_.has_lexer() || !is_ready) continue;
        const std::vector<Part>& parts = this->parts(top->state);
        for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
          ending = part->bytes.empty() ? endings_.jump(part->num_tokens, ending) : endings_.add(part->bytes, ending);
        }
        endings.push_back(ending);
      }
    }
    if (!is_ready) continue;
    pending.pop_back();
    bool is_unknown = endings.empty();  // no state on top has an ending
    known_[at] = {is_unknown ? endings_.jump(engine::kUnknownCost, nullptr) : endings_.any_of(std::move(endings)),
                  std::min(most, kNone - 1)};
  }
  return known_[node];
}

}  // namespace structout::context_free
