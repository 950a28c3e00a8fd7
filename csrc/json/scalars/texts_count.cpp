// Counts the texts that continue a state.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "json/scalars/texts.h"

namespace structout::json {

namespace {

constexpr size_t kMaxRemainders = 1 << 15;  // of a step

// The number of digits that may follow, whichever they are, such that the automaton accepts
// after each of them. UINT32_MAX: no limit.
uint32_t num_free_digits(const engine::Automaton& language, uint32_t state) {
  std::unordered_set<uint32_t> reached = {state};
  std::vector<uint32_t> level = {state};
  for (uint32_t num_digits = 0; !level.empty(); ++num_digits) {
    for (uint32_t from : std::exchange(level, {})) {
      uint32_t digits_left = 10;
      for (const engine::Edge* edge = language.begin(from); edge < language.end(from); ++edge) {
        int first = std::max<int>(edge->first, '0'), last = std::min<int>(edge->last, '9');
        if (first > last) continue;
        if (!language.accepts(edge->target)) return num_digits;
        digits_left -= uint32_t(last - first + 1);
        if (reached.insert(edge->target).second) level.push_back(edge->target);
      }
      if (digits_left > 0) return num_digits;
    }
  }
  return UINT32_MAX;
}

}  // namespace

// With a limit of 17 digits, the multiples of 86,400 have a million states. Without it they
// have few, and from each of them any digits can be read, and then a few more to an end. So
// conditions that accept any digits for a while, such as this limit, are set aside, and
// only the others are searched. Bounds are such conditions too: any 19 digits are below
// 2^64.
uint32_t Texts::num_whole_numbers(uint32_t state) {
  const TextState given = states_[state];
  if (given.kind != TextKind::kNumber || formulas_.op(given.formula) != Op::kAnd) return 0;
  std::vector<Formula> others;
  uint32_t num_free = kFar;
  for (Formula literal : formulas_.operands(given.formula)) {
    const FormulaNode node = formulas_[literal];
    const engine::Automaton* language = node.op == Op::kText ? languages_[node.a].automaton.get() : nullptr;
    uint32_t num_free_here = language == nullptr ? 0 : num_free_digits(*language, node.b);
    if (num_free_here == 0) {
      others.push_back(literal);
    } else {
      num_free = std::min(num_free, num_free_here);
    }
  }
  if (num_free == kFar) return 0;
  uint32_t to_an_end = num_digits_to_an_end(add({given.kind, given.syntax, formulas_.conjunction(std::move(others))}));
  if (to_an_end == kFar || to_an_end >= num_free) return 0;
  uint64_t count = 1;
  for (uint32_t i = to_an_end; i < num_free && count < kManyTexts; ++i) count *= 10;
  return uint32_t(std::min<uint64_t>(count, kManyTexts));
}

uint32_t Texts::least_count(uint32_t state) {
  uint32_t count = num_whole_numbers(state);
  return count > 0 ? count : this->count(state);
}

uint32_t Texts::num_digits_to_an_end(uint32_t start) {
  auto known = digits_to_an_end_.find(start);
  if (known != digits_to_an_end_.end()) return known->second;
  std::vector<uint32_t> reached = {start};
  std::unordered_map<uint32_t, std::vector<uint32_t>> sources = {{start, {}}};
  bool is_closed = true;  // any digits may follow each other
  for (size_t i = 0; i < reached.size() && is_closed; ++i) {
    for (uint8_t digit = '0'; digit <= '9'; ++digit) {
      uint32_t target = next(reached[i], digit);
      is_closed = is_closed && target != engine::kDead && states_[target].formula != kNever;
      if (!is_closed) break;
      auto [found, is_new] = sources.try_emplace(target);
      found->second.push_back(reached[i]);
      if (is_new) reached.push_back(target);
    }
    if (reached.size() <= kMaxRemainders) continue;
    for (uint32_t state : reached) digits_to_an_end_[state] = kFar;
    return kFar;
  }
  if (!is_closed) return digits_to_an_end_[start] = kFar;
  std::unordered_set<uint32_t> is_near;  // to an end
  std::vector<uint32_t> level;
  auto add_near = [&](uint32_t state) {
    if (is_near.insert(state).second) level.push_back(state);
  };
  for (uint32_t state : reached) {
    if (accepts(state)) add_near(state);
  }
  uint32_t distance = 0;
  for (; !level.empty() && is_near.size() < reached.size(); ++distance) {
    for (uint32_t state : std::exchange(level, {})) {
      for (uint32_t source : sources[state]) add_near(source);
    }
  }
  if (is_near.size() < reached.size()) distance = kFar;
  for (uint32_t state : reached) digits_to_an_end_[state] = distance;  // for some an upper bound
  return distance;
}

// Counts only characters of one byte, and of these only the ones with allowed bytes.
bool Texts::are_many_of_length(uint32_t length) const {
  uint64_t num_plain = 0, count = 1;
  for (int byte = 0x20; byte < 0x7F; ++byte) num_plain += allowed_bytes_[byte] && byte != '"' && byte != '\\';
  for (uint32_t i = 0; i < length && count < kManyTexts && num_plain > 1; ++i) count *= num_plain;
  return count >= kManyTexts || (length == kFar && num_plain > 0);
}

uint32_t Texts::count(uint32_t start) {
  auto known = counts_.find(start);
  if (known != counts_.end()) return known->second;
  if (states_[start].kind != TextKind::kNumber) {
    auto split = split_limit(start);
    bool is_free = is_between_characters(start) && asks_for_length_only(split ? split->first : start);
    if (is_free && are_many_of_length(split ? split->second - 1 : kFar)) {
      return counts_[start] = is_live(start) ? kManyTexts : 0;
    }
  }
  // Depth first: a state gets its count after all that follow it, or as soon as its count
  // is large. A state that leads back to itself has infinitely many texts.
  struct Visit {
    uint32_t state;
    size_t edge = 0;
    uint64_t count = 0;
  };
  std::vector<Visit> path;
  std::unordered_set<uint32_t> is_on_path;
  auto enter = [&](uint32_t state) {
    expand(state);
    path.push_back({state});
    path.back().count = accepts(state);
    is_on_path.insert(state);
    budget_.spend(1);
  };
  if (!is_live(start)) return counts_[start] = 0;
  if (num_whole_numbers(start) == kManyTexts) return counts_[start] = kManyTexts;
  enter(start);
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.count >= kManyTexts || visit.edge == steps_[visit.state].edges.size()) {
      counts_[visit.state] = uint32_t(std::min<uint64_t>(visit.count, kManyTexts));
      is_on_path.erase(visit.state);
      path.pop_back();
      continue;
    }
    const engine::Edge edge = steps_[visit.state].edges[visit.edge];
    auto known = counts_.find(edge.target);
    if (known != counts_.end()) {
      visit.count += uint64_t(edge.last - edge.first + 1) * known->second;
      ++visit.edge;
    } else if (is_on_path.count(edge.target) != 0 || num_whole_numbers(edge.target) == kManyTexts) {
      visit.count = kManyTexts;
    } else if (is_live(edge.target)) {
      enter(edge.target);
    } else {
      counts_[edge.target] = 0;
    }
  }
  return counts_[start];
}

uint32_t Texts::num_among(uint32_t state, const TextSet::Cursor& begin) {
  struct Visit {
    uint32_t state;
    TextSet::Cursor cursor;
  };
  uint32_t count = 0;
  for (std::vector<Visit> open = {{state, begin}}; !open.empty();) {
    Visit visit = open.back();
    open.pop_back();
    if (accepts(visit.state)) {
      TextSet::Cursor quoted = visit.cursor;
      quoted.read('"');
      count += visit.cursor.is_whole() || quoted.is_whole();
    }
    visit.cursor.visit_next([&](uint8_t byte, const TextSet::Cursor& cursor) {
      uint32_t target = next(visit.state, byte);
      if (target != engine::kDead) open.push_back({target, cursor});
    });
  }
  return count;
}

}  // namespace structout::json
