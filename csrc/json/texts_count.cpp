// How many texts go on from a state.
#include <algorithm>
#include <unordered_set>

#include "json/texts.h"

namespace structout::json {

namespace {

constexpr uint32_t kManyCharacters = 5;  // of any kind: more than kManyTexts texts

}  // namespace

uint32_t Texts::count(uint32_t start) {
  auto known = counts_.find(start);
  if (known != counts_.end()) return known->second;
  if (states_[start].kind == TextKind::kString) {
    auto split = split_limit(start);
    bool is_long = !split || split->second > kManyCharacters;
    if (is_long && is_between_characters(start) && asks_for_length_only(split ? split->first : start)) {
      return counts_[start] = is_live(start) ? kManyTexts : 0;
    }
  }
  // Depth first: the count of a state is known behind those of all that follow it, or as
  // soon as it is large. A state that leads back to itself has infinitely many texts.
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
    } else if (is_on_path.count(edge.target) != 0) {
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
