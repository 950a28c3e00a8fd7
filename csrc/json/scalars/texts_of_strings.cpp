// Facts on strings from which masks are made without reading every token: characters that
// may follow in any number, and maximum lengths.
#include <algorithm>

#include "json/scalars/texts.h"
#include "token_masks/character_classes.h"

namespace structout::json {

using engine::Edge;

namespace {

constexpr uint8_t kSeparator[] = {0xE2, 0x80};  // U+2028 and U+2029 begin so
constexpr uint32_t kAnyLength = UINT32_MAX - 1;
constexpr size_t kMaxSearched = 2000;
constexpr size_t kMaxPlainStates = 500;

}  // namespace

uint32_t Texts::num_plain_bytes(uint32_t state) {
  if (!allows_all_bytes_ || !is_between_characters(state) || !is_live(state)) return 0;
  auto split = split_limit(state);
  if (asks_for_length_only(split ? split->first : state)) return split ? split->second - 1 : kAnyLength;
  return allows_plain(state) ? kAnyLength : 0;
}

// True if a formula, apart from its maximum length, constrains nothing but the minimum
// length.
bool Texts::asks_for_length_only(uint32_t state) const {
  Formula formula = states_[state].formula;
  return formula == kAlways || formulas_.op(formula) == Op::kMinLength;
}

uint32_t Texts::num_required(uint32_t state) {
  auto split = split_limit(state);
  const Formula formula = states_[split ? split->first : state].formula;
  return formulas_.op(formula) == Op::kMinLength ? formulas_[formula].a : 0;
}

// True if a formula has no literals but bounds of the length.
bool Texts::is_about_length(Formula formula) const {
  bool result = true;
  formulas_.visit_literals(formula, [&](Formula atom, bool) { result &= formulas_.op(atom) == Op::kMinLength; });
  return result;
}

// True if any number of arbitrary plain characters (see StringTokens) may follow. Searches
// the states that they lead to, and returns false if there are too many.
bool Texts::allows_plain(uint32_t start) {
  auto known = allows_plain_.find(start);
  if (known != allows_plain_.end()) return known->second;
  struct Visit {
    uint32_t state;
    uint32_t num_separator_bytes;  // of E2 80 A8 and E2 80 A9 that lead to the state
    size_t before;                 // the visit that led to this one
  };
  std::vector<Visit> seen = {{start, 0, 0}};
  std::unordered_set<uint64_t> is_seen = {start};
  // If some characters cannot follow a state, the same is true of every state on the way to
  // it.
  auto refuse = [&](size_t i) {
    for (; i != 0; i = seen[i].before) {
      if (seen[i].num_separator_bytes == 0) allows_plain_[seen[i].state] = false;
    }
    return allows_plain_[start] = false;
  };
  for (size_t i = 0; i < seen.size(); ++i) {
    Visit visit = seen[i];
    auto known = allows_plain_.find(visit.state);
    if (visit.num_separator_bytes == 0 && known != allows_plain_.end()) {
      if (!known->second) return refuse(i);
      continue;
    }
    // The search is too long. The states on the way to its half are refused too, so that it
    // is not repeated from each of them.
    if (seen.size() > kMaxPlainStates) return refuse(i / 2);
    expand(visit.state);
    const std::vector<Edge> edges = steps_[visit.state].edges;
    auto is_asked = [&](const Edge& edge) {
      if (edge.first == '\\' && edge.last == '\\') return false;
      return visit.num_separator_bytes < 2 || edge.first < 0xA8 || edge.last > 0xA9;
    };
    for (const Edge& edge : edges) {
      if (is_asked(edge) && !is_live(edge.target)) return refuse(i);
    }
    for (const Edge& edge : edges) {
      if (!is_asked(edge)) continue;
      uint32_t count = visit.num_separator_bytes;
      bool continues = count < 2 && edge.first <= kSeparator[count] && kSeparator[count] <= edge.last;
      auto add = [&](uint32_t num_separator_bytes) {
        bool is_new = is_seen.insert(uint64_t(num_separator_bytes) << 32 | edge.target).second;
        if (is_new) seen.push_back({edge.target, num_separator_bytes, i});
      };
      if (continues) add(visit.num_separator_bytes + 1);
      if (!continues || edge.first < edge.last) add(0);
    }
  }
  for (const Visit& visit : seen) {
    if (visit.num_separator_bytes == 0) allows_plain_[visit.state] = true;
  }
  return true;
}

uint64_t Texts::repeated_classes(uint32_t state) {
  if (states_[state].kind == TextKind::kNumber || !is_between_characters(state) || !allows_all_bytes_) return 0;
  auto [found, is_new] = repeated_classes_.try_emplace(state, 0);
  if (!is_new) return found->second;
  expand(state);
  const std::vector<Edge> edges = steps_[state].edges;
  bool has_loop = std::any_of(edges.begin(), edges.end(), [state](const Edge& edge) { return edge.target == state; });
  if (!has_loop) return 0;
  uint64_t others = engine::kOtherCharacters | engine::kOtherWhitespace;
  std::map<std::pair<uint32_t, uint32_t>, bool> known;
  for (const Edge& edge : edges) {
    for (int byte = edge.first; byte <= edge.last; ++byte) {
      bool is_ascii = byte < 0x80;
      uint64_t of_byte = is_ascii ? engine::class_of_ascii(uint8_t(byte)) : engine::class_of_character(uint8_t(byte));
      if ((others & of_byte) != 0) continue;
      if (!leads_back(state, edge.target, byte == kSeparator[0] ? 1 : 0, known)) others |= of_byte;
    }
  }
  return found->second = ~others;
}

// True if all ways to the end of a character lead to `start`, apart from U+2028 and U+2029,
// which may lead anywhere. `num_separator_bytes`: the bytes of these two that have come.
bool Texts::leads_back(uint32_t start, uint32_t state, uint32_t num_separator_bytes,
                       std::map<std::pair<uint32_t, uint32_t>, bool>& known) {
  if (is_between_characters(state)) return state == start;
  auto [found, is_new] = known.try_emplace({state, num_separator_bytes}, false);
  if (!is_new) return found->second;
  if (!is_live(state)) return false;
  expand(state);
  for (const Edge& edge : std::vector<Edge>(steps_[state].edges)) {
    if (num_separator_bytes == 2 && edge.first >= 0xA8 && edge.last <= 0xA9) continue;
    bool continues = num_separator_bytes == 1 && edge.first <= kSeparator[1] && kSeparator[1] <= edge.last;
    if (continues && !leads_back(start, edge.target, 2, known)) return false;
    if ((!continues || edge.first < edge.last) && !leads_back(start, edge.target, 0, known)) return false;
  }
  return found->second = true;
}

std::optional<std::pair<uint32_t, uint32_t>> Texts::split_limit(uint32_t state) {
  const TextState given = states_[state];
  bool is_conjunction = formulas_.op(given.formula) == Op::kAnd;
  std::vector<Formula> others;
  uint32_t limit = kFar;
  for (Formula literal : is_conjunction ? formulas_.operands(given.formula) : std::vector<Formula>{given.formula}) {
    const FormulaNode& node = formulas_[literal];
    bool is_limit = node.op == Op::kNot && formulas_.op(node.a) == Op::kMinLength;
    if (is_limit) {
      limit = std::min(limit, formulas_[node.a].a);
    } else {
      others.push_back(literal);
    }
  }
  if (limit == kFar) return std::nullopt;
  return std::pair(add({given.kind, given.syntax, formulas_.conjunction(std::move(others))}), limit);
}

Texts::BoundedStrings Texts::without_lengths(Formula formula) {
  BoundedStrings found{kAlways};
  std::vector<Formula> others;
  for (Formula literal : formulas_.conjuncts(formula)) {
    const FormulaNode& node = formulas_[literal];
    if (node.op == Op::kMinLength) {
      found.min = std::max(found.min, node.a);
    } else if (node.op == Op::kNot && formulas_.op(node.a) == Op::kMinLength) {
      found.max = std::min(found.max, formulas_[node.a].a - 1);
    } else {
      others.push_back(literal);
    }
  }
  found.others = formulas_.conjunction(std::move(others));
  return found;
}

engine::Automaton Texts::strings_between_quotes(Formula formula, const engine::Limits& limits) {
  constexpr uint32_t kEnd = 1, kFirst = 2;  // state 0 reads the opening quote
  engine::Budget budget(limits);
  engine::AutomatonBuilder builder;
  std::vector<uint32_t> found = {start(TextKind::kString, formula)};
  std::unordered_map<uint32_t, uint32_t> numbers = {{found[0], kFirst}};
  builder.add_state(false, {{'"', '"', kFirst}});
  builder.add_state(true, {});
  for (size_t i = 0; i < found.size(); ++i) {
    std::vector<Edge> edges;
    for (const Edge& edge : std::vector<Edge>(this->edges(found[i]))) {
      if (states_[edge.target].formula == kNever) continue;
      auto [number, is_new] = numbers.try_emplace(edge.target, uint32_t(numbers.size()) + kFirst);
      if (is_new) found.push_back(edge.target);
      edges.push_back({edge.first, edge.last, number->second});
    }
    if (accepts(found[i])) {
      auto after = std::find_if(edges.begin(), edges.end(), [](const Edge& edge) { return edge.first > '"'; });
      edges.insert(after, {'"', '"', kEnd});
    }
    budget.spend(1 + edges.size());
    budget.check_states(found.size());
    builder.add_state(false, edges);
  }
  return builder.minimal(0, budget);
}

uint32_t Texts::distance(uint32_t start) {
  auto known = distances_.find(start);
  if (known != distances_.end()) return known->second;
  if (!is_live(start)) return distances_[start] = kFar;
  // All states at one distance, then those that are a character further away, up to one that
  // accepts or whose own distance is known.
  struct Step {
    uint32_t state, before, characters;
  };
  std::vector<Step> steps = {{start, 0, 0}};
  std::vector<uint32_t> level = {0}, next_level;
  std::unordered_set<uint32_t> is_seen = {start};
  uint32_t nearest = kFar, last = 0;
  for (uint32_t characters = 0; characters < nearest && !level.empty(); ++characters) {
    for (size_t i = 0; i < level.size() && characters < nearest; ++i) {
      const uint32_t now = steps[level[i]].state;
      auto rest = distances_.find(now);
      if (steps_[now].accepts || rest != distances_.end()) {
        uint32_t distance = characters + (steps_[now].accepts ? 0 : rest->second);
        if (distance < nearest) last = level[i];
        nearest = std::min(nearest, distance);
        continue;
      }
      expand(now);
      for (size_t edge = 0; edge < steps_[now].edges.size(); ++edge) {
        uint32_t target = steps_[now].edges[edge].target;
        if (!is_live(target) || !is_seen.insert(target).second) continue;
        bool is_whole = states_[target].syntax == kBoundary;
        (is_whole ? next_level : level).push_back(uint32_t(steps.size()));
        steps.push_back({target, level[i], characters + is_whole});
      }
    }
    level.swap(next_level);
    next_level.clear();
  }
  for (uint32_t at = last; at != 0; at = steps[at].before) distances_[steps[at].state] = nearest - steps[at].characters;
  return distances_[start] = nearest;
}

uint32_t Texts::largest_distance(uint32_t start) {
  auto known = largest_distances_.find(start);
  if (known != largest_distances_.end()) return known->second;
  std::vector<uint32_t> seen = {start};
  std::unordered_map<uint32_t, bool> is_seen = {{start, true}};
  uint32_t largest = 0;
  for (size_t i = 0; i < seen.size() && largest != kFar; ++i) {
    uint32_t now = seen[i];
    if (is_between_characters(now)) largest = std::max(largest, distance(now));
    if (seen.size() > kMaxSearched) largest = kFar;
    expand(now);
    for (size_t edge = 0; edge < steps_[now].edges.size(); ++edge) {
      uint32_t target = steps_[now].edges[edge].target;
      if (is_live(target) && is_seen.try_emplace(target, true).second) seen.push_back(target);
    }
  }
  for (uint32_t state : seen) largest_distances_.emplace(state, largest);  // an upper bound for those that follow
  return largest;
}

uint32_t Texts::without_far_limit(uint32_t state, uint32_t max_length) {
  auto split = split_limit(state);
  if (!split || split->second <= max_length) return state;
  uint32_t largest = largest_distance(split->first);
  // One character may be incomplete.
  return largest < kFar - 1 && split->second - max_length > largest + 1 ? split->first : state;
}

std::optional<Texts::LengthLimit> Texts::length_limit(uint32_t state) {
  if (states_[state].kind == TextKind::kNumber || !is_between_characters(state)) return std::nullopt;
  auto split = split_limit(state);
  if (!split) return std::nullopt;
  auto [without, limit] = *split;
  // A minimum length that fits now still fits after any characters that fit.
  uint32_t largest = asks_for_length_only(without) ? 0 : largest_distance(without);
  if (largest >= limit) return std::nullopt;
  return LengthLimit{without, limit - 1 - largest, limit - 1};
}

}  // namespace structout::json
