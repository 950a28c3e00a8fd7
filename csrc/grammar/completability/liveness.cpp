#include "grammar/completability/liveness.h"

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "grammar/completability/rule_ends.h"

namespace structout::context_free {

EndSearch::EndSearch(const Network& network, Completability& completability)
    : network_(network),
      completability_(completability),
      to_rule_end_(least_to_rule_end(network, [](uint32_t symbol) { return symbol < kFirstToken ? 1 : 0; })) {}

uint32_t EndSearch::distance(const Reader& reader, GssNode node) {
  if (distances_.size() <= node) distances_.resize(reader.stacks().num_nodes(), kNone);
  std::vector<GssNode> pending = {node};
  while (!pending.empty()) {
    GssNode current = pending.back();
    uint32_t least = kNone;
    bool is_ready = true;
    for (const StackTop* top = reader.stacks().begin(current); top < reader.stacks().end(current); ++top) {
      if (top->state == kEndOfText) {
        least = 0;
      } else if (distances_[top->below] == kNone) {
        pending.push_back(top->below);
        is_ready = false;
      } else {
        least = std::min(least, to_rule_end_[top->state] + distances_[top->below]);
      }
    }
    if (!is_ready) continue;
    distances_[current] = least;
    pending.pop_back();
  }
  return distances_[node];
}

template <typename IsKnownEnd>
std::pair<uint32_t, bool> EndSearch::search(Reader& reader, const Configuration& config, bool by_bytes,
                                            IsKnownEnd is_known_end, std::vector<Step>& steps, engine::Budget& budget) {
  using Promise = std::pair<uint32_t, uint32_t>;  // bytes of the whole path, at least; the step
  std::priority_queue<Promise, std::vector<Promise>, std::greater<>> pending;
  std::map<std::pair<GssNode, uint32_t>, uint32_t> lengths;  // of the shortest paths so far, by configuration
  steps.clear();
  uint64_t work_of_ends = 0;  // of embedded texts
  auto reach = [&](const LexerConfiguration& next, uint32_t before, std::string bytes) {
    if (next.node == Stacks::kDead) return;
    if (before != kNone && result_of(next) == kNoEnd) return;  // no text may go there
    uint32_t length = uint32_t(bytes.size()) + (before == kNone ? 0 : steps[before].length);
    auto [known, is_new] = lengths.try_emplace({next.node, next.lexer_state}, length);
    if (!is_new && known->second <= length) return;  // an embedded text may be a longer path to the same configuration
    known->second = length;
    steps.push_back({next, before, length, std::move(bytes)});
    pending.push({length + distance(reader, next.node), uint32_t(steps.size() - 1)});
  };
  auto reach_all = [&](const Configuration& next, uint32_t before, const std::string& bytes) {
    reach(next, before, bytes);
    if (next.others == nullptr) return;
    for (const LexerConfiguration& other : next.others->lexer_configs) reach(other, before, bytes);
    for (const EmbeddedParse& parse : next.others->parses) {
      // Any end of an embedded text will do, and it always has one.
      std::optional<std::string> end;
      if (by_bytes) end = reader.embedded().locked(parse.cache).short_end(*parse.config, work_of_ends);
      if (end || !by_bytes) reach(reader.after_embedded(parse.below, budget), before, bytes + end.value_or(""));
    }
  };
  const uint64_t total_before = budget.total();
  reach_all(config, kNone, "");
  for (uint32_t num_expanded = 0; !pending.empty(); ++num_expanded) {
    if (num_expanded == kMaxConfigs || budget.total() - total_before > kMaxWork) return {kNone, false};
    if (work_of_ends > kMaxWorkOfEnds) return {kNone, false};
    uint32_t step = pending.top().second;
    pending.pop();
    Configuration current{steps[step].config};
    if (lengths[{current.node, current.lexer_state}] < steps[step].length) continue;
    if (reader.may_end(current, budget) || is_known_end(current)) return {step, false};
    for (uint8_t byte : reader.bytes_with_tokens()) {
      reach_all(reader.after(current, byte, budget), step, std::string(1, char(byte)));
    }
    if (by_bytes) continue;
    if (network_.has_token_limits()) {
      uint32_t at_limit = reader.lexer().accepted_at_limit(current.lexer_state, budget);
      if (at_limit != 0) reach(reader.config_after_lexeme(current.node, at_limit, budget), step, "");
    }
    if (!network_.has_tokens()) continue;
    for (const StackTop& top : reader.stacks().tops(reader.before_token(current, budget))) {
      if (top.state >= kUnknownContext) continue;
      for (auto edge = network_.tokens_begin(top.state); edge < network_.tokens_end(top.state); ++edge) {
        reach_all(reader.after_token(current, edge->first - kFirstToken, budget), step, "");
      }
    }
  }
  return {kNone, true};
}

std::optional<bool> EndSearch::at_a_glance(Reader& reader, const LexerConfiguration& config, engine::Budget& budget) {
  if (reader.may_end(Configuration{config}, budget)) return true;
  Lexer& lexer = reader.lexer();
  const std::vector<Completability::Completion>& completions = completability_.completions(config.lexer_state, budget);
  const std::vector<StackTop> tops = reader.stacks().tops(config.node);
  bool has_others = false;  // true if an embedded text or a token may begin here
  for (const StackTop& top : tops) {
    if (top.state >= kUnknownContext || !reader.is_between(config)) continue;
    bool is_completable_at = false;
    visit_others(network_, top.state, [&](uint32_t, uint32_t next) {
      has_others = true;
      is_completable_at = is_completable_at || completability_.is_completable_at(next, ByteClassSets::kEmpty, budget);
    });
    if (is_completable_at) return true;
  }
  for (const Completability::Completion& completion : completions) {
    const std::vector<uint32_t> terminals(lexer.begin(completion.accepted), lexer.end(completion.accepted));
    for (uint32_t terminal : terminals) {
      if (!network_.terminals()[terminal].options.stop.empty()) return std::nullopt;
      for (const StackTop& top : tops) {
        if (top.state >= kUnknownContext) continue;
        uint32_t next = lexer.is_ignored(terminal) ? top.state : network_.next(top.state, terminal);
        if (next != kNone && completability_.is_completable_at(next, completion.end, budget)) return true;
      }
    }
  }
  if (has_others) return std::nullopt;
  for (const Completability::Completion& completion : completions) {
    auto [node, lexer_start, num_tokens] = reader.config_after_lexeme(config.node, completion.accepted, budget);
    if (node == Stacks::kDead) continue;
    if (reader.stacks().may_end(node)) return true;
    if (completability_.may_begin(lexer_start, completion.end, budget)) return std::nullopt;
    for (const StackTop& top : reader.stacks().tops(node)) {
      bool may_follow = false;
      if (top.state >= kUnknownContext) continue;
      visit_others(network_, top.state, [&](uint32_t symbol, uint32_t) {
        may_follow = may_follow || completability_.may_follow(symbol, completion.end);
      });
      if (may_follow) return std::nullopt;
    }
  }
  return false;
}

bool EndSearch::searched_has_end(Reader& reader, const LexerConfiguration& config, engine::Budget& budget) {
  if (result_of(config) != PairTable::kMissing) return is_end(result_of(config));
  if (std::optional<bool> result = at_a_glance(reader, config, budget)) {
    note(config, *result ? kEnd : kNoEnd);
    return *result;
  }
  std::vector<Step> steps;
  auto is_known_end = [&](const LexerConfiguration& reached) {
    return is_end(result_of(reached)) || completability_.is_completable(reached.lexer_state, budget);
  };
  auto [last, were_all_tried] = search(reader, Configuration{config}, false, is_known_end, steps, budget);
  if (last != kNone) {
    note(steps[last].config, kEnd);
    for (uint32_t next = last; steps[next].before != kNone; next = steps[next].before) {
      note_path(steps[steps[next].before].config, steps[next].config);
    }
    return true;
  }
  if (!were_all_tried) steps.resize(1);
  for (const Step& step : steps) note(step.config, kNoEnd);
  return false;
}

std::vector<EndSearch::Part> EndSearch::path(Reader& reader, const Configuration& config, const IsEnd& is_known_end,
                                             engine::Budget& budget) {
  std::vector<Step> steps;
  std::vector<Part> path;
  for (uint32_t at = search(reader, config, true, is_known_end, steps, budget).first; at != kNone;
       at = steps[at].before) {
    path.push_back({steps[at].config, steps[at].bytes});
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::optional<std::string> EndSearch::shortest(Reader& reader, const Configuration& config, engine::Budget& budget) {
  std::vector<Part> path = this->path(reader, config, [](const LexerConfiguration&) { return false; }, budget);
  if (path.empty()) return std::nullopt;
  std::string bytes;
  for (const Part& part : path) bytes += part.bytes;
  return bytes;
}

}  // namespace structout::context_free
