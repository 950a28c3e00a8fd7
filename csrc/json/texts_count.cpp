// How many texts go on from a state.
#include <algorithm>
#include <map>

#include "json/texts.h"

namespace structout::json {

namespace {

constexpr uint32_t kManyCharacters = 5;  // of any kind: more than kManyTexts texts
constexpr uint64_t kMaxSteps = 1 << 16;

}  // namespace

std::pair<uint32_t, bool> Texts::count(uint32_t state) {
  auto known = counts_.find(state);
  if (known != counts_.end()) return known->second;
  if (states_[state].kind == TextKind::kString) {
    auto split = split_limit(state);
    bool is_long = !split || split->second > kManyCharacters;
    if (is_long && is_between_characters(state) && asks_for_length_only(split ? split->first : state)) {
      return counts_[state] = {is_live(state) ? kManyTexts : 0, true};
    }
  }
  if (std::optional<uint32_t> count = num_texts(state)) return counts_[state] = {*count, true};
  // Some texts are long. By length, with how many ways there are to each state.
  std::map<uint32_t, uint64_t> ways = {{state, 1}};
  uint64_t count = 0, num_steps = 0;
  while (!ways.empty() && count < kManyTexts && num_steps < kMaxSteps) {
    std::map<uint32_t, uint64_t> longer;
    for (auto [from, num_ways] : ways) {
      if (accepts(from)) count = std::min<uint64_t>(count + num_ways, kManyTexts);
      for (const engine::Edge& edge : std::vector<engine::Edge>(edges(from))) {
        ++num_steps;
        if (!is_live(edge.target)) continue;
        uint64_t& to = longer[edge.target];
        to = std::min<uint64_t>(to + num_ways * uint64_t(edge.last - edge.first + 1), kManyTexts);
      }
    }
    // Each of these ways leads to a text of its own.
    uint64_t num_open = 0;
    for (auto [to, num_ways] : longer) num_open += num_ways;
    if (num_open >= kManyTexts) count = kManyTexts;
    ways = std::move(longer);
  }
  budget_.spend(num_steps);
  return counts_[state] = {uint32_t(count), count == kManyTexts || ways.empty()};
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
