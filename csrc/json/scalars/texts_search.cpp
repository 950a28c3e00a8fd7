// Searches for texts that a formula accepts.
#include <algorithm>

#include "json/scalars/texts.h"

namespace structout::json {

using engine::Edge;

namespace {

constexpr size_t kMaxListedLength = 256;
constexpr size_t kMaxStatesToAnEnd = 20'000;

}  // namespace

uint32_t Texts::least_length(uint32_t state) const {
  Formula formula = states_[state].formula;
  uint32_t length = 0;
  auto take = [&](Formula literal) {
    const FormulaNode& node = formulas_[literal];
    if (node.op != Op::kText || languages_[node.a].distances == nullptr) return;
    length = std::max(length, (*languages_[node.a].distances)[node.b]);
  };
  if (formulas_.op(formula) != Op::kAnd) {
    take(formula);
  } else {
    for (Formula literal : formulas_.operands(formula)) take(literal);
  }
  return length;
}

// The text of a literal that accepts only one, if a formula requires such a literal. Among
// hundreds of constants, this one needs a look at each, and no states.
std::optional<std::string> Texts::only_text(Formula formula) const {
  for (Formula literal : formulas_.conjuncts(formula)) {
    const FormulaNode& node = formulas_[literal];
    if (node.op != Op::kText || languages_[node.a].listed != nullptr) continue;
    const engine::Automaton& automaton = *languages_[node.a].automaton;
    std::string text;
    uint32_t state = node.b;
    while (automaton.end(state) - automaton.begin(state) == 1 && text.size() < kMaxListedLength) {
      const Edge* edge = automaton.begin(state);
      if (edge->first != edge->last || automaton.accepts(state)) break;
      text.push_back(char(edge->first));
      state = edge->target;
    }
    if (automaton.begin(state) == automaton.end(state)) return text;
  }
  return std::nullopt;
}

bool Texts::is_continued_by(const TextState& state, const std::string& text) {
  budget_.spend(1);
  uint32_t syntax_state = state.syntax, num_characters = 0;
  for (char byte : text) {
    syntax_state = allowed_bytes_[uint8_t(byte)] ? syntax(state.kind).next(syntax_state, uint8_t(byte)) : engine::kDead;
    if (syntax_state == engine::kDead) return false;
    num_characters += state.kind != TextKind::kNumber && syntax_state == kBoundary;
  }
  return syntax(state.kind).accepts(syntax_state) && formulas_.evaluate(state.formula, [&](Formula atom) {
    const FormulaNode& node = formulas_[atom];
    if (node.op == Op::kMinLength) return num_characters >= node.a;
    uint32_t at = node.b;
    for (size_t i = 0; i < text.size() && at < languages_[node.a].automaton->num_states(); ++i) {
      at = languages_[node.a].automaton->next(at, uint8_t(text[i]));
    }
    return at < languages_[node.a].automaton->num_states() && languages_[node.a].accepts(at);
  });
}

bool Texts::is_live(uint32_t state) {
  if (steps_[state].life != Life::kUnknown) return steps_[state].life == Life::kLive;
  if (std::optional<std::string> only = only_text(states_[state].formula)) {
    bool is_live = is_continued_by(states_[state], *only);
    steps_[state].life = is_live ? Life::kLive : Life::kDead;
    return is_live;
  }
  if (auto split = split_limit(state)) {
    bool is_live = distance(split->first) < split->second;
    steps_[state].life = is_live ? Life::kLive : Life::kDead;
    return is_live;
  }
  struct Visit {
    uint32_t state;
    std::vector<uint32_t> targets = {};  // that are left to be visited, the best one last
  };
  // A depth-first search to any text that the formula accepts, which goes where the end is
  // near first: multiples of 86,400 with 17 digits have a million states, and an end five
  // digits away. All states on the way to it are live; if there is none, all visited
  // states are dead.
  std::vector<Visit> path;
  std::vector<uint32_t> visited;
  std::unordered_map<uint32_t, bool> is_visited;
  auto enter = [&](uint32_t entered) {
    is_visited[entered] = true;
    visited.push_back(entered);
    path.push_back({entered});
    if (states_[entered].formula == kNever || steps_[entered].accepts) return;
    expand(entered);
    std::vector<uint32_t>& targets = path.back().targets;
    for (auto edge = steps_[entered].edges.rbegin(); edge != steps_[entered].edges.rend(); ++edge) {
      targets.push_back(edge->target);
    }
    std::stable_sort(targets.begin(), targets.end(),
                     [this](uint32_t a, uint32_t b) { return least_length(a) > least_length(b); });
  };
  enter(state);
  bool found = false;
  while (!path.empty() && !found) {
    Visit& visit = path.back();
    found = steps_[visit.state].accepts;
    if (found) break;
    if (visit.targets.empty()) {
      path.pop_back();
      continue;
    }
    uint32_t target = visit.targets.back();
    visit.targets.pop_back();
    if (steps_[target].life == Life::kLive) {
      found = true;
    } else if (steps_[target].life == Life::kUnknown && is_visited.count(target) == 0) {
      enter(target);
    }
  }
  if (found) {
    for (const Visit& visit : path) steps_[visit.state].life = Life::kLive;
  } else {
    for (uint32_t dead : visited) steps_[dead].life = Life::kDead;
  }
  return found;
}

std::optional<std::vector<std::string>> Texts::all_texts(uint32_t start, size_t max) {
  struct Visit {
    uint32_t state;
    size_t edge;
    int byte;  // the next one of the edge, or -1
  };
  std::vector<std::string> texts;
  if (!is_live(start)) return std::vector<std::string>{};
  if (states_[start].kind == TextKind::kNumber && count(start) > max) return std::nullopt;
  std::vector<Visit> path = {{start, 0, -1}};
  std::string text;
  size_t num_steps = 0;
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.edge == 0 && visit.byte < 0) {
      if (accepts(visit.state)) texts.push_back(text);
      // A text of that length comes from a cycle, or from one of many choices.
      if (texts.size() > max || text.size() > kMaxListedLength || ++num_steps > max * kMaxListedLength) {
        return std::nullopt;
      }
      expand(visit.state);
    }
    if (visit.edge == steps_[visit.state].edges.size()) {
      path.pop_back();
      if (!text.empty()) text.pop_back();
      continue;
    }
    const Edge edge = steps_[visit.state].edges[visit.edge];
    if (visit.byte < 0) visit.byte = edge.first;
    if (visit.byte > edge.last || !is_live(edge.target)) {
      ++visit.edge;
      visit.byte = -1;
      continue;
    }
    text.push_back(char(visit.byte++));
    path.push_back({edge.target, 0, -1});
  }
  return texts;
}

bool Texts::may_lack_texts(uint32_t state) {
  std::vector<uint32_t> reached = {state};
  std::unordered_set<uint32_t> is_reached = {state};
  for (size_t i = 0; i < reached.size(); ++i) {
    expand(reached[i]);
    if (steps_[reached[i]].lacks_edges) return true;
    for (const Edge& edge : steps_[reached[i]].edges) {
      if (states_[edge.target].formula == kNever) continue;
      if (is_reached.insert(edge.target).second) reached.push_back(edge.target);
    }
  }
  return false;
}

std::optional<std::vector<std::string>> Texts::all_strings(Formula formula, size_t max) {
  uint32_t state = start(TextKind::kString, formula);
  std::optional<std::vector<std::string>> texts = all_texts(state, max);
  if (texts && !allows_all_bytes_ && may_lack_texts(state)) return std::nullopt;
  return texts;
}

bool Texts::may_satisfy(const std::vector<uint32_t>& states, uint32_t truths) {
  TextState all = states_[states[0]];
  for (size_t i = 1; i < states.size(); ++i) {
    Formula formula = states_[states[i]].formula;
    bool holds = (truths >> (i - 1) & 1) != 0;
    all.formula = formulas_.conjunction({all.formula, holds ? formula : formulas_.negation(formula)});
  }
  return is_live(add(all));
}

uint32_t Texts::num_bytes_to_an_end(uint32_t state) {
  constexpr uint32_t kMostBytes = 4;  // of a character
  uint32_t most = asks_for_length_only(state) ? distance(state) : largest_distance(state);
  return most >= kManyTexts / kMostBytes ? kManyTexts : most * kMostBytes;
}

// Breadth first, up to an accepting state or one whose continuation is known.
std::optional<uint8_t> Texts::next_byte(uint32_t start) {
  auto known = next_bytes_.find(start);
  if (known != next_bytes_.end()) return known->second.second;
  struct Step {
    uint32_t state, before, length;
    uint8_t byte;
  };
  std::vector<Step> steps = {{start, 0, 0, 0}};
  std::unordered_set<uint32_t> is_seen = {start};
  uint32_t shortest = kFar, last = 0;
  for (uint32_t i = 0; i < steps.size() && steps[i].length < shortest && steps.size() < kMaxStatesToAnEnd; ++i) {
    const Step step = steps[i];
    auto next = next_bytes_.find(step.state);
    bool is_end = accepts(step.state) || next != next_bytes_.end();
    uint32_t length = step.length + (accepts(step.state) || !is_end ? 0 : next->second.first);
    if (is_end && length < shortest) {
      shortest = length;
      last = i;
    }
    if (is_end) continue;
    expand(step.state);
    const std::vector<Edge> edges = steps_[step.state].edges;
    for (bool is_letter : {true, false}) {  // tokens have more letters than digits
      for (const Edge& edge : edges) {
        bool has_letter = edge.first <= 'a' && 'a' <= edge.last;
        if (has_letter != is_letter || states_[edge.target].formula == kNever || !is_live(edge.target)) continue;
        if (!is_seen.insert(edge.target).second) continue;
        steps.push_back({edge.target, i, step.length + 1, has_letter ? uint8_t('a') : edge.first});
      }
    }
  }
  if (shortest == kFar) return std::nullopt;
  uint32_t length = shortest - steps[last].length;
  for (uint32_t at = last; at != 0; at = steps[at].before) {
    next_bytes_[steps[steps[at].before].state] = {++length, steps[at].byte};
  }
  return next_bytes_.at(start).second;
}

std::optional<std::string> Texts::witness(TextKind kind, Formula formula) {
  uint32_t state = start(kind, formula);
  if (!is_live(state)) return std::nullopt;
  // Breadth first, so that the text is a shortest one.
  struct Step {
    uint32_t state, before;
    uint8_t byte;
  };
  std::vector<Step> steps = {{state, 0, 0}};
  std::unordered_map<uint32_t, bool> is_seen = {{state, true}};
  for (uint32_t i = 0; i < steps.size(); ++i) {
    if (accepts(steps[i].state)) {
      std::string text;
      for (uint32_t at = i; at > 0; at = steps[at].before) text.push_back(char(steps[at].byte));
      std::reverse(text.begin(), text.end());
      return text;
    }
    expand(steps[i].state);
    for (size_t edge = 0; edge < steps_[steps[i].state].edges.size(); ++edge) {
      Edge to = steps_[steps[i].state].edges[edge];
      if (is_live(to.target) && is_seen.try_emplace(to.target, true).second) steps.push_back({to.target, i, to.first});
    }
  }
  return std::nullopt;
}

}  // namespace structout::json
