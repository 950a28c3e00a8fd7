#include "context_free/liveness.h"

#include <algorithm>
#include <queue>
#include <set>
#include <utility>

namespace structout::context_free {

namespace {

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
      if (shortest == least[state]) continue;
      least[state] = shortest;
      pending.push_back(state);
    }
  }
  return least;
}

}  // namespace

EndSearch::EndSearch(const Network& network, SureWays& sure_ways)
    : network_(network), sure_ways_(sure_ways), to_rule_end_(symbols_to_rule_end(network)) {}

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
std::pair<uint32_t, bool> EndSearch::search(Reader& reader, Place place, IsKnownEnd is_known_end,
                                            std::vector<Step>& steps, engine::Budget& budget) {
  steps = {{place, kNone, 0, 0}};
  using Promise = std::pair<uint32_t, uint32_t>;  // bytes of the whole way, at least; the step
  std::priority_queue<Promise, std::vector<Promise>, std::greater<>> pending;
  pending.push({distance(reader, place.node), 0});
  std::set<std::pair<Node, uint32_t>> seen = {{place.node, place.lexer_state}};
  uint64_t work_before = budget.total();
  for (uint32_t num_expanded = 0; !pending.empty(); ++num_expanded) {
    if (num_expanded == kMaxPlaces || budget.total() - work_before > kMaxWork) return {kNone, false};
    uint32_t step = pending.top().second;
    pending.pop();
    Place current = steps[step].place;
    if (reader.may_end(current, budget) || is_known_end(current)) return {step, false};
    for (uint8_t byte : reader.bytes_with_tokens()) {
      Place next = reader.after(current, byte, budget);
      if (next.is_dead() || !seen.insert({next.node, next.lexer_state}).second) continue;
      uint32_t length = steps[step].length + 1;
      steps.push_back({next, step, length, byte});
      pending.push({length + distance(reader, next.node), uint32_t(steps.size() - 1)});
    }
  }
  return {kNone, true};
}

std::optional<bool> EndSearch::at_a_glance(Reader& reader, Place place, engine::Budget& budget) {
  if (reader.may_end(place, budget)) return true;
  Lexer& lexer = reader.lexer();
  const std::vector<SureWays::Completion>& completions = sure_ways_.completions(place.lexer_state, budget);
  const std::vector<Item> items = reader.stacks().items(place.node);
  for (const SureWays::Completion& completion : completions) {
    const std::vector<uint32_t> terminals(lexer.begin(completion.accepted), lexer.end(completion.accepted));
    for (uint32_t terminal : terminals) {
      for (const Item& item : items) {
        if (item.state >= kHole) continue;
        uint32_t next = lexer.is_ignored(terminal) ? item.state : network_.next(item.state, terminal);
        if (next != kNone && sure_ways_.is_good(next, completion.end, budget)) return true;
      }
    }
  }
  for (const SureWays::Completion& completion : completions) {
    Node node = reader.after_lexeme(place.node, completion.accepted, budget);
    if (node == Stacks::kDead) continue;
    if (reader.stacks().may_end(node)) return true;
    if (sure_ways_.may_begin(reader.lexer_start(node), completion.end, budget)) return std::nullopt;
  }
  return false;
}

bool EndSearch::searched_has_end(Reader& reader, Place place, engine::Budget& budget) {
  auto result_of = [this](Place of) { return results_.find(of.node, of.lexer_state); };
  auto note = [&](Place of, bool has_end) {
    if (result_of(of) == PairTable::kMissing) results_.add(of.node, of.lexer_state, has_end);
  };
  if (result_of(place) != PairTable::kMissing) return result_of(place) == 1;
  if (std::optional<bool> result = at_a_glance(reader, place, budget)) {
    note(place, *result);
    return *result;
  }
  std::vector<Step> steps;
  auto is_known_end = [&](Place reached) {
    return result_of(reached) == 1 || sure_ways_.is_safe(reached.lexer_state, budget);
  };
  auto [last, were_all_tried] = search(reader, place, is_known_end, steps, budget);
  for (uint32_t step = last; step != kNone; step = steps[step].before) note(steps[step].place, true);
  if (last != kNone) return true;
  if (!were_all_tried) steps.resize(1);
  for (const Step& step : steps) note(step.place, false);
  return false;
}

std::optional<std::string> EndSearch::shortest(Reader& reader, Place place, engine::Budget& budget) {
  std::vector<Step> steps;
  uint32_t step = search(reader, place, [](Place) { return false; }, steps, budget).first;
  if (step == kNone) return std::nullopt;
  std::string bytes;
  for (; steps[step].before != kNone; step = steps[step].before) bytes.push_back(char(steps[step].byte));
  std::reverse(bytes.begin(), bytes.end());
  return bytes;
}

}  // namespace structout::context_free
