#include "grammar/completability/completability.h"

#include <algorithm>
#include <new>
#include <set>

#include "base/sorted_set.h"
#include "grammar/lexer/contexts.h"

namespace structout::context_free {

RuleCompletability::RuleCompletability(const Network& network, Lexemes& lexemes, const ByteClassSets& sets,
                                       std::vector<uint32_t> contexts)
    : network_(network), lexemes_(lexemes), sets_(sets), contexts_(std::move(contexts)), returns_(network.num_rules()) {
  for (uint32_t state = 0; state < network.num_states(); ++state) {
    for (const Call* call = network.calls_begin(state); call < network.calls_end(state); ++call) {
      returns_[call->rule].push_back(call->target);
    }
  }
  for (uint32_t terminal = 0; terminal < network.terminals().size(); ++terminal) {
    if (network.terminals()[terminal].is_ignored && !network.ignores_once()) ignored_.push_back(terminal);
  }
}

uint32_t RuleCompletability::point_of(uint32_t state, uint32_t end) {
  uint32_t known = point_numbers_.find(state, end);
  if (known != PairTable::kMissing) return known;
  uint32_t number = uint32_t(points_.size());
  points_.push_back({state, end});
  point_numbers_.add(state, end, number);
  return number;
}

// True if exits() was called for this program point, or if another program point still
// needs its exits. A program point with the empty end as its exit needs no more, since none
// is smaller.
bool RuleCompletability::is_needed(const Point& point) const {
  auto is_done = [this](uint32_t number) {
    const Point& other = points_[number];
    return other.exits.size() == 1 && other.exits[0] == ByteClassSets::kEmpty;
  };
  return point.is_wanted ||
         std::any_of(point.parents.begin(), point.parents.end(), [&](uint32_t number) { return !is_done(number); }) ||
         std::any_of(point.callers.begin(), point.callers.end(), [&](auto caller) { return !is_done(caller.first); });
}

// Adds the program points that follow. The budget may throw only before anything has
// changed.
void RuleCompletability::expand(uint32_t number, engine::Budget& budget) {
  const uint32_t state = points_[number].state, end = points_[number].end;
  std::vector<std::pair<uint32_t, uint32_t>> next;  // states and ends
  for (uint32_t terminal = 0; terminal < network_.terminals().size() && network_.reads_symbols(state); ++terminal) {
    uint32_t target = network_.next(state, terminal);
    if (target == kNone || !network_.terminals()[terminal].options.stop.empty()) continue;
    for (uint32_t of : lexemes_.ends_after(contexts_[state], terminal, end, budget)) next.emplace_back(target, of);
  }
  // Ignored terminals may stand in front of the next one. At the start of a text they may
  // not, but it makes no difference here: any terminal may come first.
  for (uint32_t terminal : ignored_) {
    if (!network_.reads_symbols(state)) break;
    for (uint32_t of : lexemes_.ends_after(contexts_[state], terminal, end, budget)) next.emplace_back(state, of);
  }
  // No bytes extend embedded texts, or tokens matched by their ids: the lexer has no part
  // in them.
  visit_others(network_, state, [&](uint32_t symbol, uint32_t target) {
    if (lexemes_.may_follow(symbol, end)) next.emplace_back(target, ByteClassSets::kEmpty);
  });
  budget.spend(next.size() + 1);
  points_[number].is_expanded = true;
  if (network_.is_accepting(state)) add_exit(number, end);
  for (auto [target, of] : next) link(number, point_of(target, of));
  for (const Call* call = network_.calls_begin(state); call < network_.calls_end(state); ++call) {
    uint32_t callee = point_of(network_.start(call->rule), end);
    points_[callee].callers.emplace_back(number, call->target);
    if (!points_[callee].is_expanded) to_expand_.push_back(callee);
    const std::vector<uint32_t> exits = points_[callee].exits;
    for (uint32_t exit : exits) link(number, point_of(call->target, exit));
  }
}

// Makes the exits of `to`, later ones included, exits of `from`.
void RuleCompletability::link(uint32_t from, uint32_t to) {
  if (from == to) return;
  std::vector<uint32_t>& parents = points_[to].parents;
  if (std::find(parents.begin(), parents.end(), from) != parents.end()) return;
  parents.push_back(from);
  if (!points_[to].is_expanded) to_expand_.push_back(to);
  const std::vector<uint32_t> exits = points_[to].exits;
  for (uint32_t exit : exits) add_exit(from, exit);
}

void RuleCompletability::add_exit(uint32_t point, uint32_t end) {
  if (sets_.add_minimal(points_[point].exits, end)) new_exits_.emplace_back(point, end);
}

const std::vector<uint32_t>& RuleCompletability::exits(uint32_t state, uint32_t end, engine::Budget& budget) try {
  uint32_t wanted = point_of(state, end);
  points_[wanted].is_wanted = true;
  to_expand_.push_back(wanted);
  while (!to_expand_.empty() || !new_exits_.empty()) {
    if (!new_exits_.empty()) {
      auto [number, exit] = new_exits_.back();
      new_exits_.pop_back();
      const std::vector<uint32_t> parents = points_[number].parents;
      for (uint32_t parent : parents) add_exit(parent, exit);
      const std::vector<std::pair<uint32_t, uint32_t>> callers = points_[number].callers;
      for (auto [caller, target] : callers) link(caller, point_of(target, exit));
      continue;
    }
    uint32_t number = to_expand_.back();
    if (!points_[number].is_expanded && is_needed(points_[number])) {
      expand(number, budget);  // puts others on top
    } else {
      to_expand_.pop_back();
    }
  }
  return points_[wanted].exits;
} catch (const std::bad_alloc&) {  // a program point may lack some of its paths
  point_numbers_.clear();
  points_.clear();
  to_expand_.clear();
  new_exits_.clear();
  throw;
}

// A greatest fixpoint over the exits of rules: an exit is completable if each state that
// the rule may return to has a completable exit after it. Returns always lead to a smaller
// stack, so completable exits may rely on each other.
bool RuleCompletability::is_completable_at(uint32_t state, uint32_t end, engine::Budget& budget) {
  uint32_t known = is_completable_at_.find(state, end);
  if (known != PairTable::kMissing) return known == 1;
  PairTable assumed;  // exits of rules: 1, or 0 once that is refuted
  std::vector<std::pair<uint32_t, uint32_t>> exits_assumed;
  // True if the program point has a completable exit, provided that the exits in `assumed`
  // are completable.
  auto has_exit = [&](uint32_t from, uint32_t after) {
    uint32_t rule = network_.rule_of(from);
    std::vector<uint32_t> ends = exits(from, after, budget);
    if (rule == network_.root()) return !ends.empty();
    std::sort(ends.begin(), ends.end());  // first the empty one
    for (uint32_t of : ends) {
      uint32_t result = is_completable_exit_.find(rule, of);
      if (result == PairTable::kMissing) result = assumed.find(rule, of);
      if (result == 0) continue;
      if (result == PairTable::kMissing) {
        assumed.add(rule, of, 1);
        exits_assumed.emplace_back(rule, of);
      }
      return true;
    }
    return false;
  };
  bool result = has_exit(state, end);
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (size_t i = 0; i < exits_assumed.size(); ++i) {
      auto [rule, of] = exits_assumed[i];
      if (assumed.find(rule, of) == 0) continue;
      budget.spend(returns_[rule].size());
      bool holds = std::all_of(returns_[rule].begin(), returns_[rule].end(),
                               [&, of = of](uint32_t target) { return has_exit(target, of); });
      if (holds) continue;
      assumed.set(rule, of, 0);
      has_changed = true;
    }
    if (has_changed) result = has_exit(state, end);
  }
  for (auto [rule, of] : exits_assumed) is_completable_exit_.add(rule, of, assumed.find(rule, of));
  is_completable_at_.add(state, end, result);
  return result;
}

Completability::Completability(const Network& network, Lexer& lexer)
    : network_(network),
      lexer_(lexer),
      lexemes_(network, sets_),
      bytes_(lexer.bytes_with_tokens()),
      targets_(network.terminals().size()) {
  std::vector<uint32_t> all;
  for (uint32_t terminal = 0; terminal < targets_.size(); ++terminal) {
    all.push_back(terminal);
    for (uint32_t state = 0; state < network.num_states(); ++state) {
      bool is_ignored = network.terminals()[terminal].is_ignored;
      if (!network.reads_symbols(state)) continue;
      uint32_t next = is_ignored ? state : network.next(state, terminal);
      if (next != kNone) targets_[terminal].push_back(next);
    }
    engine::make_set(targets_[terminal]);
  }
  std::vector<uint32_t> contexts(network.num_states(), lexemes_.context_of(all));
  with_all_ = std::make_unique<RuleCompletability>(network, lexemes_, sets_, std::move(contexts));
}

Completability::~Completability() = default;

// The number of the classes that would extend the lexeme.
uint32_t Completability::end_of(uint32_t lexer_state, engine::Budget& budget) {
  ByteClasses extending;
  for (uint8_t byte : bytes_) {
    if (lexer_.after(lexer_state, byte, budget) != Lexer::kStuck) extending.set(lexer_.class_of(byte));
  }
  return sets_.number_of(extending);
}

// A lexer that follows all terminals ends fewer lexemes than the real one, so a text that
// can be finished with it can be finished. It is simpler than the contexts of states, which
// are computed only if it does not suffice.
bool Completability::is_completable_at(uint32_t state, uint32_t end, engine::Budget& budget) {
  if (with_all_->is_completable_at(state, end, budget)) return true;
  if (!are_contexts_known_) {
    std::vector<std::vector<uint32_t>> contexts = contexts_of_states(network_, budget);
    std::vector<uint32_t> numbers;
    for (const std::vector<uint32_t>& context : contexts) numbers.push_back(lexemes_.context_of(context));
    if (!contexts.empty()) {
      with_contexts_ = std::make_unique<RuleCompletability>(network_, lexemes_, sets_, std::move(numbers));
    }
    are_contexts_known_ = true;
  }
  return with_contexts_ != nullptr && with_contexts_->is_completable_at(state, end, budget);
}

// True if the text can be finished in each state that the terminal leads to, after a lexeme
// with this end.
bool Completability::is_completable_after(uint32_t terminal, uint32_t end, engine::Budget& budget) {
  if (!network_.terminals()[terminal].options.stop.empty()) return false;  // that depends on what follows
  uint32_t known = is_completable_after_.find(terminal, end);
  if (known != PairTable::kMissing) return known == 1;
  bool result = std::all_of(targets_[terminal].begin(), targets_[terminal].end(),
                            [&](uint32_t target) { return is_completable_at(target, end, budget); });
  is_completable_after_.add(terminal, end, result);
  return result;
}

// Looks for a lexeme after which all is completable, the shortest first.
bool Completability::computed_is_completable(uint32_t lexer_state, engine::Budget& budget) {
  struct Step {
    uint32_t state, before;
  };
  std::vector<Step> steps = {{lexer_state, kNone}};
  std::set<uint32_t> seen = {lexer_state};
  uint32_t found = kNone;
  for (uint32_t i = 0; i < steps.size() && found == kNone; ++i) {
    uint32_t state = steps[i].state, accepted = lexer_.accepted(state);
    budget.spend(1);
    if (accepted != 0) {
      uint32_t end = end_of(state, budget);
      std::vector<uint32_t> terminals(lexer_.begin(accepted), lexer_.end(accepted));
      auto is_completable_at = [&](uint32_t terminal) { return is_completable_after(terminal, end, budget); };
      if (std::any_of(terminals.begin(), terminals.end(), is_completable_at)) found = i;
    }
    uint32_t at_limit = network_.has_token_limits() ? lexer_.accepted_at_limit(state, budget) : 0;
    if (at_limit != 0) {
      const std::vector<uint32_t> terminals(lexer_.begin(at_limit), lexer_.end(at_limit));
      auto is_completable_at = [&](uint32_t terminal) {
        return is_completable_after(terminal, ByteClassSets::kEmpty, budget);
      };
      if (std::any_of(terminals.begin(), terminals.end(), is_completable_at)) found = i;
    }
    if (found == kNone && state < is_completable_.size() && is_completable_[state] == 1) found = i;
    for (uint8_t byte : bytes_) {
      if (found != kNone) break;
      uint32_t next = lexer_.after(state, byte, budget);
      if (next != Lexer::kStuck && seen.insert(next).second) steps.push_back({next, i});
    }
  }
  if (is_completable_.size() < lexer_.num_states()) is_completable_.resize(lexer_.num_states(), kUnknown);
  // If none was found, no state that was reached is completable. Otherwise all states on
  // the path to the found one are.
  if (found == kNone) {
    for (const Step& step : steps) is_completable_[step.state] = 0;
  }
  for (; found != kNone; found = steps[found].before) is_completable_[steps[found].state] = 1;
  return is_completable_[lexer_state] == 1;
}

const std::vector<Completability::Completion>& Completability::completions(uint32_t lexer_state,
                                                                           engine::Budget& budget) {
  auto known = completions_.find(lexer_state);
  if (known != completions_.end()) return known->second;
  std::set<Completion> found;
  std::vector<uint32_t> states = {lexer_state};
  std::set<uint32_t> seen = {lexer_state};
  for (size_t i = 0; i < states.size(); ++i) {
    budget.spend(1);
    uint32_t accepted = lexer_.accepted(states[i]);
    if (accepted != 0) found.insert({accepted, end_of(states[i], budget)});
    uint32_t at_limit = network_.has_token_limits() ? lexer_.accepted_at_limit(states[i], budget) : 0;
    if (at_limit != 0) found.insert({at_limit, ByteClassSets::kEmpty});
    for (uint8_t byte : bytes_) {
      uint32_t next = lexer_.after(states[i], byte, budget);
      if (next != Lexer::kStuck && seen.insert(next).second) states.push_back(next);
    }
  }
  return completions_[lexer_state] = {found.begin(), found.end()};
}

bool Completability::may_begin(uint32_t lexer_start, uint32_t end, engine::Budget& budget) {
  return std::any_of(bytes_.begin(), bytes_.end(), [&](uint8_t byte) {
    return !sets_[end][lexer_.class_of(byte)] && lexer_.after(lexer_start, byte, budget) != Lexer::kStuck;
  });
}

size_t Completability::memory_bytes() const { return lexemes_.memory_bytes() + is_completable_.capacity(); }

}  // namespace structout::context_free
