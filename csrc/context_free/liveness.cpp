#include "context_free/liveness.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace structout::context_free {

namespace {

using ByteSet = std::bitset<256>;

constexpr uint32_t kMaxContexts = 5'000;  // sets of states that stand side by side

// Sets of bytes with numbers.
class ByteSets {
 public:
  static constexpr uint32_t kNone = 0;  // the empty set

  ByteSets() { number_of(ByteSet()); }

  const ByteSet& operator[](uint32_t number) const { return sets_[number]; }
  uint32_t number_of(const ByteSet& bytes) {
    auto [found, is_new] = numbers_.try_emplace(bytes, uint32_t(sets_.size()));
    if (is_new) sets_.push_back(bytes);
    return found->second;
  }

 private:
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, uint32_t> numbers_;
};

// How a lexeme begins and ends: the number of the set of its first bytes, and that of the
// bytes that would extend it.
using Spelling = std::pair<uint32_t, uint32_t>;

// Which lexemes can follow each other, if the lexer always follows the same terminals.
//
// The real lexer follows some of them only, so fewer bytes extend a lexeme. All texts of
// terminals count as lexemes here, also where another terminal is lazy or preferred, so no
// real lexeme is missing, and no byte that would extend it. Those that no other terminal
// can take away are sure: the real lexer reads them, too.
class Lexemes {
 public:
  Lexemes(const Network& network, engine::Budget& budget) : network_(network), budget_(budget), lexer_(network, true) {
    std::array<bool, 257> bounds{};
    bounds[0] = true;
    for (const Terminal& terminal : network.terminals()) {
      for (uint32_t state = 0; state < terminal.automaton.num_states(); ++state) {
        for (const engine::Edge* edge = terminal.automaton.begin(state); edge < terminal.automaton.end(state); ++edge) {
          bounds[edge->first] = bounds[edge->last + 1] = true;
        }
      }
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (bounds[size_t(byte)]) byte_groups_.push_back({uint8_t(byte), ByteSet()});
      byte_groups_.back().second.set(size_t(byte));
    }
  }

  // The end of a lexeme, and whether it is that of a sure one.
  using End = std::pair<uint32_t, bool>;

  // The ends of lexemes of the terminal that may stand behind the given end, where the
  // lexer follows the given terminals.
  const std::vector<End>& ends_behind(uint32_t context, uint32_t terminal, uint32_t end) {
    auto [found, is_new] = behind_.try_emplace({context, terminal, end});
    if (!is_new) return found->second;
    std::map<uint32_t, bool> ends;
    for (const auto& [spelling, is_sure] : spellings(context)[terminal]) {
      if ((sets_[spelling.first] & ~sets_[end]).none()) continue;
      bool& of_end = ends[spelling.second];
      of_end = of_end || is_sure;
    }
    return found->second = {ends.begin(), ends.end()};
  }

  // Whether one of the bytes would not extend a lexeme with the given end.
  bool may_follow(const ByteSet& bytes, uint32_t end) const { return (bytes & ~sets_[end]).any(); }

  uint32_t context_of(const std::set<uint32_t>& terminals) {
    return lexer_.set_of({terminals.begin(), terminals.end()});
  }

 private:
  // A state of the lexer, with what can be read from it.
  struct State {
    uint32_t end;                // the number of the bytes that extend the lexeme
    std::vector<uint32_t> next;  // the states behind them
  };

  const State& state_of(uint32_t number) {
    auto [found, is_new] = states_.try_emplace(number);
    State& state = found->second;
    if (!is_new) return state;
    ByteSet extending;
    for (const auto& [byte, group] : byte_groups_) {
      uint32_t next = lexer_.after(number, byte, budget_);
      if (next == Lexer::kStuck) continue;
      extending |= group;
      state.next.push_back(next);
    }
    std::sort(state.next.begin(), state.next.end());
    state.next.erase(std::unique(state.next.begin(), state.next.end()), state.next.end());
    state.end = sets_.number_of(extending);
    return state;
  }

  using Spellings = std::map<Spelling, bool>;  // whether a sure lexeme has it

  // The spellings of each terminal.
  std::vector<Spellings>& spellings(uint32_t context) {
    auto [found, is_new] = spellings_.try_emplace(context);
    if (!is_new) return found->second;
    found->second.resize(network_.terminals().size());
    std::map<uint32_t, ByteSet> first_bytes;  // by the state after them
    uint32_t start = lexer_.start(context);
    for (const auto& [byte, group] : byte_groups_) {
      uint32_t next = lexer_.after(start, byte, budget_);
      if (next != Lexer::kStuck) first_bytes[next] |= group;
    }
    for (const auto& [first_state, bytes] : first_bytes) add_spellings(first_state, bytes, found->second);
    return found->second;
  }

  void add_spellings(uint32_t first_state, const ByteSet& first_bytes, std::vector<Spellings>& spellings) {
    struct Reached {
      uint32_t state;
      bool is_sure;  // no lazy terminal has ended the lexeme before
    };
    std::set<std::pair<uint32_t, bool>> seen = {{first_state, true}};
    std::vector<Reached> pending = {{first_state, true}};
    uint32_t first = sets_.number_of(first_bytes);
    while (!pending.empty()) {
      Reached reached = pending.back();
      pending.pop_back();
      budget_.spend(1);
      const State& state = state_of(reached.state);
      uint32_t set = lexer_.accepted(reached.state);
      std::vector<uint32_t> accepted(lexer_.begin(set), lexer_.end(set));
      auto is_lazy = [this](uint32_t terminal) { return network_.terminals()[terminal].is_lazy; };
      for (uint32_t terminal : accepted) {
        spellings[terminal].try_emplace({first, is_lazy(terminal) ? ByteSets::kNone : state.end}, false);
      }
      bool goes_on_surely = reached.is_sure && std::none_of(accepted.begin(), accepted.end(), is_lazy);
      if (reached.is_sure) {
        for (uint32_t terminal : Lexer::chosen(network_, accepted)) {
          spellings[terminal][{first, is_lazy(terminal) ? ByteSets::kNone : state.end}] = true;
        }
      }
      for (uint32_t next : state.next) {
        if (seen.insert({next, goes_on_surely}).second) pending.push_back({next, goes_on_surely});
      }
    }
  }

  const Network& network_;
  engine::Budget& budget_;
  Lexer lexer_;
  ByteSets sets_;
  std::vector<std::pair<uint8_t, ByteSet>> byte_groups_;  // bytes that no terminal tells apart, and one of them
  std::unordered_map<uint32_t, State> states_;
  std::map<uint32_t, std::vector<Spellings>> spellings_;  // by context
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<End>> behind_;
};

// Calls visit(symbol, target) for the embedded texts and the tokens that a state reads.
template <typename Visit>
void visit_others(const Network& network, uint32_t state, Visit visit) {
  for (const Call* call = network.embedded_begin(state); call < network.embedded_end(state); ++call) {
    visit(kFirstToken - 1 - call->rule, call->target);  // no terminal has such a number
  }
  for (auto edge = network.tokens_begin(state); edge < network.tokens_end(state); ++edge) {
    visit(edge->first, edge->target);
  }
}

// For each state, the terminals that the lexer may follow where the state stands: all
// that are allowed beside those of the state, and maybe more. Empty if that takes too much.
class Contexts {
 public:
  Contexts(const Network& network, engine::Budget& budget) : network_(network), budget_(budget) {
    returns_.resize(network.num_rules());
    for (uint32_t rule = 0, state = 0; rule < network.num_rules(); ++rule) {
      uint32_t end = rule + 1 < network.num_rules() ? network.start(rule + 1) : network.num_states();
      for (; state < end; ++state) {
        rule_of_state_.push_back(rule);
        for (const Call* call = network.calls_begin(state); call < network.calls_end(state); ++call) {
          returns_[call->rule].insert(call->target);
        }
      }
    }
  }

  std::vector<std::set<uint32_t>> of_states() {
    std::vector<std::set<uint32_t>> contexts(network_.num_states());
    std::set<std::vector<uint32_t>> seen;
    std::vector<std::vector<uint32_t>> pending = {{network_.start(network_.root())}};
    seen.insert(pending[0]);
    while (!pending.empty()) {
      std::set<uint32_t> states = closure(pending.back());
      pending.pop_back();
      std::map<uint32_t, std::set<uint32_t>> after;  // by terminal
      for (uint32_t state : states) {
        for (uint32_t terminal = 0; terminal < network_.terminals().size(); ++terminal) {
          uint32_t next = network_.next(state, terminal);
          if (next != kNone) after[terminal].insert(next);
        }
        visit_others(network_, state, [&](uint32_t symbol, uint32_t next) {
          after[std::min(symbol, kFirstToken)].insert(next);  // as if all tokens were one
        });
        budget_.spend(network_.terminals().size());
      }
      for (uint32_t state : states) {
        for (const auto& [symbol, targets] : after) {
          if (symbol < network_.terminals().size()) contexts[state].insert(symbol);
        }
        for (uint32_t terminal = 0; terminal < network_.terminals().size() && !after.empty(); ++terminal) {
          if (network_.terminals()[terminal].is_ignored) contexts[state].insert(terminal);
        }
      }
      for (const auto& [terminal, targets] : after) {
        std::vector<uint32_t> kernel(targets.begin(), targets.end());
        if (seen.insert(kernel).second) pending.push_back(std::move(kernel));
      }
      if (seen.size() > kMaxContexts) return {};
    }
    return contexts;
  }

 private:
  // The states where a text may stand that stands in one of the given ones. A rule may
  // return to wherever it is called.
  std::set<uint32_t> closure(std::vector<uint32_t> pending) const {
    std::set<uint32_t> states;
    while (!pending.empty()) {
      uint32_t state = pending.back();
      pending.pop_back();
      if (!states.insert(state).second) continue;
      budget_.spend(1);
      for (const Call* call = network_.calls_begin(state); call < network_.calls_end(state); ++call) {
        pending.push_back(network_.start(call->rule));
      }
      if (!network_.is_accepting(state)) continue;
      const std::set<uint32_t>& targets = returns_[rule_of_state_[state]];
      pending.insert(pending.end(), targets.begin(), targets.end());
    }
    return states;
  }

  const Network& network_;
  engine::Budget& budget_;
  std::vector<uint32_t> rule_of_state_;
  std::vector<std::set<uint32_t>> returns_;  // by rule
};

// The ends of lexemes with which texts of rules can end, as a least fixpoint: the ends of
// all texts, and of those that the lexer surely reads as they are meant.
class RuleEnds {
 public:
  // `contexts`: the terminals that the lexer follows in each state, or more.
  RuleEnds(const Network& network, const std::vector<std::set<uint32_t>>& contexts, engine::Budget& budget)
      : network_(network), lexemes_(network, budget), budget_(budget) {
    for (const std::set<uint32_t>& context : contexts) contexts_.push_back(lexemes_.context_of(context));
    for (uint32_t terminal = 0; terminal < network.terminals().size(); ++terminal) {
      if (network.terminals()[terminal].is_ignored) ignored_.push_back(terminal);
    }
  }

  // Whether each place that a rule may reach surely has a way to its end.
  bool all_places_have_one() {
    want({network_.root(), ByteSets::kNone});
    while (!pending_.empty()) {
      Start start = *pending_.begin();
      pending_.erase(pending_.begin());
      search(start);
    }
    for (const auto& [start, found] : searches_) {
      std::vector<uint64_t> live;
      std::unordered_set<uint64_t> is_live;
      for (const auto& [key, before] : found.reached) {
        if (!network_.is_accepting(spot_of(key).state)) continue;
        live.push_back(key);
        is_live.insert(key);
      }
      while (!live.empty()) {
        uint64_t key = live.back();
        live.pop_back();
        for (uint64_t before : found.reached.at(key)) {
          if (is_live.insert(before).second) live.push_back(before);
        }
      }
      if (is_live.size() < found.reached.size()) return false;
    }
    return true;
  }

 private:
  using Start = std::pair<uint32_t, uint32_t>;  // a rule, and the end of the lexeme before it
  struct Spot {
    uint32_t state, end;  // of the lexeme before it
  };
  struct Search {
    std::set<uint32_t> ends, sure_ends;
    std::set<Start> callers;                                        // whose searches use these ends
    std::unordered_map<uint64_t, std::vector<uint64_t>> reached{};  // spots, with those that surely lead there
  };

  static uint64_t key_of(Spot spot) { return uint64_t(spot.state) << 32 | spot.end; }
  static Spot spot_of(uint64_t key) { return {uint32_t(key >> 32), uint32_t(key)}; }

  void want(const Start& start) {
    if (searches_.try_emplace(start).second) pending_.insert(start);
  }

  // All spots that the rule reaches from its start, as far as the ends of others are known.
  void search(const Start& start) {
    std::unordered_map<uint64_t, std::vector<uint64_t>> reached;
    std::vector<uint64_t> pending = {key_of({network_.start(start.first), start.second})};
    std::unordered_set<uint64_t> surely_reached = {pending[0]};
    std::vector<uint64_t> surely_pending = pending;
    std::unordered_map<uint64_t, std::vector<uint64_t>> sure_ways;
    reached[pending[0]];
    while (!pending.empty()) {
      uint64_t key = pending.back();
      pending.pop_back();
      visit_ways(start, spot_of(key), [&](Spot next, bool is_sure) {
        budget_.spend(1);
        auto [found, is_new] = reached.try_emplace(key_of(next));
        if (is_new) pending.push_back(key_of(next));
        if (!is_sure) return;
        found->second.push_back(key);
        sure_ways[key].push_back(key_of(next));
      });
    }
    std::set<uint32_t> ends, sure_ends;
    for (const auto& [key, before] : reached) {
      if (network_.is_accepting(spot_of(key).state)) ends.insert(spot_of(key).end);
    }
    while (!surely_pending.empty()) {
      uint64_t key = surely_pending.back();
      surely_pending.pop_back();
      if (network_.is_accepting(spot_of(key).state)) sure_ends.insert(spot_of(key).end);
      for (uint64_t next : sure_ways[key]) {
        if (surely_reached.insert(next).second) surely_pending.push_back(next);
      }
    }
    Search& result = searches_[start];
    result.reached = std::move(reached);
    if (result.ends == ends && result.sure_ends == sure_ends) return;
    result.ends = std::move(ends);
    result.sure_ends = std::move(sure_ends);
    pending_.insert(result.callers.begin(), result.callers.end());
  }

  // Calls visit(next, is_sure) for the spots behind a lexeme or a call.
  template <typename Visit>
  void visit_ways(const Start& start, Spot spot, Visit visit) {
    auto read = [&](uint32_t terminal, uint32_t next) {
      for (auto [end, is_sure] : lexemes_.ends_behind(contexts_[spot.state], terminal, spot.end)) {
        visit({next, end}, is_sure);
      }
    };
    for (uint32_t terminal = 0; terminal < network_.terminals().size(); ++terminal) {
      uint32_t next = network_.next(spot.state, terminal);
      if (next != kNone) read(terminal, next);
    }
    // The lexer does not read embedded texts, nor tokens that are read by their ids.
    visit_others(network_, spot.state, [&](uint32_t symbol, uint32_t next) {
      if (symbol >= kFirstToken ||
          lexemes_.may_follow(network_.embedded()[kFirstToken - 1 - symbol]->first_bytes(), spot.end)) {
        visit({next, ByteSets::kNone}, true);
      }
    });
    // What is ignored may stand in front of the next terminal. Not at the start of a text,
    // where it makes no difference here: any terminal may come first.
    if (network_.reads_symbols(spot.state)) {
      for (uint32_t terminal : ignored_) read(terminal, spot.state);
    }
    for (const Call* call = network_.calls_begin(spot.state); call < network_.calls_end(spot.state); ++call) {
      Start callee = {call->rule, spot.end};
      want(callee);
      Search& found = searches_[callee];
      found.callers.insert(start);
      for (uint32_t end : found.ends) visit({call->target, end}, found.sure_ends.count(end) != 0);
    }
  }

  const Network& network_;
  Lexemes lexemes_;
  std::vector<uint32_t> contexts_;  // by state
  engine::Budget& budget_;
  std::vector<uint32_t> ignored_;
  std::map<Start, Search> searches_;
  std::set<Start> pending_;
};

// Symbols from each state to the end of its rule, at least.
std::vector<uint32_t> symbols_to_rule_end(const Network& network) {
  // What each state is a way on for, and each start of a rule.
  std::vector<std::vector<uint32_t>> before(network.num_states());
  std::vector<uint32_t> least(network.num_states(), kNone), pending;
  uint32_t num_symbols = network.has_lexer() ? uint32_t(network.terminals().size()) : 256;
  for (uint32_t state = 0; state < network.num_states(); ++state) {
    for (uint32_t symbol = 0; symbol < num_symbols; ++symbol) {
      uint32_t next = network.next(state, symbol);
      if (next != kNone && (before[next].empty() || before[next].back() != state)) before[next].push_back(state);
    }
    for (const Call* call = network.calls_begin(state); call < network.calls_end(state); ++call) {
      before[call->target].push_back(state);
      before[network.start(call->rule)].push_back(state);
    }
    visit_others(network, state, [&](uint32_t, uint32_t next) { before[next].push_back(state); });
    if (!network.is_accepting(state)) continue;
    least[state] = 0;
    pending.push_back(state);
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    for (uint32_t state : before[pending[i]]) {
      uint32_t shortest = least[state];
      auto try_way = [&](uint32_t target, uint32_t cost) {
        if (least[target] != kNone && cost != kNone) shortest = std::min(shortest, least[target] + cost);
      };
      for (uint32_t symbol = 0; symbol < num_symbols; ++symbol) {
        uint32_t next = network.next(state, symbol);
        if (next != kNone) try_way(next, 1);
      }
      for (const Call* call = network.calls_begin(state); call < network.calls_end(state); ++call) {
        try_way(call->target, least[network.start(call->rule)]);
      }
      visit_others(network, state, [&](uint32_t symbol, uint32_t next) { try_way(next, symbol < kFirstToken); });
      if (shortest == least[state]) continue;
      least[state] = shortest;
      pending.push_back(state);
    }
  }
  return least;
}

}  // namespace

bool always_has_end(const Network& network, engine::Budget& budget) {
  if (!network.has_lexer()) return true;
  std::set<uint32_t> all;
  for (uint32_t terminal = 0; terminal < network.terminals().size(); ++terminal) all.insert(terminal);
  // A lexer that follows all terminals ends fewer lexemes than the real one, so what can
  // be finished with it can be finished.
  std::vector<std::set<uint32_t>> contexts(network.num_states(), all);
  if (RuleEnds(network, contexts, budget).all_places_have_one()) return true;
  contexts = Contexts(network, budget).of_states();
  return !contexts.empty() && RuleEnds(network, contexts, budget).all_places_have_one();
}

EndSearch::EndSearch(const Network& network) : network_(network), to_rule_end_(symbols_to_rule_end(network)) {}

uint32_t EndSearch::distance(const Reader& reader, Node node) {
  if (distances_.size() <= node) distances_.resize(reader.stacks().num_nodes(), kNone);
  std::vector<Node> pending = {node};
  while (!pending.empty()) {
    Node current = pending.back();
    uint32_t least = kNone;
    bool is_ready = true;
    for (const Item* item = reader.stacks().begin(current); item < reader.stacks().end(current); ++item) {
      if (item->state == kEndOfText) {
        least = 0;
      } else if (distances_[item->below] == kNone) {
        pending.push_back(item->below);
        is_ready = false;
      } else {
        least = std::min(least, to_rule_end_[item->state] + distances_[item->below]);
      }
    }
    if (!is_ready) continue;
    distances_[current] = least;
    pending.pop_back();
  }
  return distances_[node];
}

template <typename IsKnownEnd>
std::pair<uint32_t, bool> EndSearch::search(Reader& reader, const Place& place, bool by_bytes, IsKnownEnd is_known_end,
                                            std::vector<Step>& steps, engine::Budget& budget) {
  using Promise = std::pair<uint32_t, uint32_t>;  // bytes of the whole way, at least; the step
  std::priority_queue<Promise, std::vector<Promise>, std::greater<>> pending;
  std::set<std::pair<Node, uint32_t>> seen;
  steps.clear();
  auto reach = [&](const LexerPlace& next, uint32_t before, std::string bytes) {
    if (next.node == Stacks::kDead || !seen.insert({next.node, next.lexer_state}).second) return;
    uint32_t length = uint32_t(bytes.size()) + (before == kNone ? 0 : steps[before].length);
    steps.push_back({next, before, length, std::move(bytes)});
    pending.push({length + distance(reader, next.node), uint32_t(steps.size() - 1)});
  };
  auto reach_all = [&](const Place& next, uint32_t before, const std::string& bytes) {
    reach(next, before, bytes);
    if (next.others == nullptr) return;
    for (const LexerPlace& other : next.others->lexer_places) reach(other, before, bytes);
    for (const EmbeddedRun& run : next.others->runs) {
      // Any end of an embedded text will do, and it always has one.
      std::optional<std::string> end;
      if (by_bytes) end = reader.embedded().held(run.states).some_end(*run.position);
      if (end || !by_bytes) reach(reader.behind(run.below, budget), before, bytes + end.value_or(""));
    }
  };
  reach_all(place, kNone, "");
  for (uint32_t num_expanded = 0; !pending.empty(); ++num_expanded) {
    if (num_expanded == kMaxPlaces) return {kNone, false};
    uint32_t step = pending.top().second;
    pending.pop();
    Place current{steps[step].place};
    if (reader.may_end(current, budget) || is_known_end(current)) return {step, false};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      reach_all(reader.after(current, uint8_t(byte), budget), step, std::string(1, char(byte)));
    }
    if (by_bytes || !network_.has_tokens()) continue;
    for (const Item& item : reader.stacks().items(reader.before_token(current, budget))) {
      if (item.state >= kHole) continue;
      for (auto edge = network_.tokens_begin(item.state); edge < network_.tokens_end(item.state); ++edge) {
        reach_all(reader.after_token(current, edge->first - kFirstToken, budget), step, "");
      }
    }
  }
  return {kNone, true};
}

bool EndSearch::has_end(Reader& reader, const LexerPlace& place, engine::Budget& budget) {
  auto result_of = [this](const LexerPlace& of) { return results_.find(of.node, of.lexer_state); };
  auto note = [&](const LexerPlace& of, bool has_end) {
    if (result_of(of) == PairTable::kMissing) results_.add(of.node, of.lexer_state, has_end);
  };
  if (result_of(place) != PairTable::kMissing) return result_of(place) == 1;
  std::vector<Step> steps;
  auto is_known_end = [&](const LexerPlace& reached) { return result_of(reached) == 1; };
  auto [last, were_all_tried] = search(reader, Place{place}, false, is_known_end, steps, budget);
  for (uint32_t step = last; step != kNone; step = steps[step].before) note(steps[step].place, true);
  if (last != kNone) return true;
  if (!were_all_tried) steps.resize(1);
  for (const Step& step : steps) note(step.place, false);
  return false;
}

std::optional<std::string> EndSearch::shortest(Reader& reader, const Place& place, engine::Budget& budget) {
  std::vector<Step> steps;
  auto is_no_end = [](const LexerPlace&) { return false; };
  uint32_t step = search(reader, place, true, is_no_end, steps, budget).first;
  if (step == kNone) return std::nullopt;
  std::vector<uint32_t> way;
  for (; step != kNone; step = steps[step].before) way.push_back(step);
  std::string bytes;
  for (auto each = way.rbegin(); each != way.rend(); ++each) bytes += steps[*each].bytes;
  return bytes;
}

}  // namespace structout::context_free
