#include "json/formulas/declared_order.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace structout::json {

uint32_t DeclaredOrder::index_of(uint32_t name) {
  auto [found, is_new] = indices_.try_emplace(name, uint32_t(names_.size()));
  if (is_new) names_.push_back({name});
  return found->second;
}

void DeclaredOrder::add(const std::vector<uint32_t>& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    uint32_t index = index_of(list[i]);
    if (i == 0 || list[i] == list[i - 1]) continue;
    uint32_t before = index_of(list[i - 1]);
    if (!neighbours_.insert(uint64_t(before) << 32 | index).second) continue;
    names_[index].before.push_back(before);
    names_[before].after.push_back(index);
  }
}

// Goes back through predecessors that are not placed until it finds a cycle, and returns
// the name of the cycle that was added first.
uint32_t DeclaredOrder::first_of_cycle(uint32_t index, const std::vector<bool>& is_placed) const {
  std::vector<uint32_t> way;
  for (;;) {
    auto seen = std::find(way.begin(), way.end(), index);
    if (seen != way.end()) return *std::min_element(seen, way.end());
    way.push_back(index);
    const std::vector<uint32_t>& before = names_[index].before;
    index = *std::find_if(before.begin(), before.end(), [&](uint32_t other) { return !is_placed[other]; });
  }
}

template <typename AtCycle>
std::vector<uint32_t> DeclaredOrder::sorted(AtCycle at_cycle) const {
  std::vector<uint32_t> ordered, num_before;
  std::vector<bool> is_placed(names_.size());
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;
  for (uint32_t i = 0; i < names_.size(); ++i) {
    num_before.push_back(uint32_t(names_[i].before.size()));
    if (num_before[i] == 0) ready.push(i);
  }
  for (uint32_t first = 0; ordered.size() < names_.size();) {
    while (first < names_.size() && is_placed[first]) ++first;
    uint32_t index = 0;
    if (ready.empty()) {
      at_cycle();
      index = first_of_cycle(first, is_placed);
    } else {
      index = ready.top();
      ready.pop();
    }
    if (is_placed[index]) continue;  // already, to break a cycle
    is_placed[index] = true;
    ordered.push_back(names_[index].name);
    for (uint32_t next : names_[index].after) {
      if (--num_before[next] == 0) ready.push(next);
    }
  }
  return ordered;
}

std::vector<uint32_t> DeclaredOrder::names() const {
  return sorted([] {});
}

bool DeclaredOrder::is_contradicted() const {
  bool has_cycle = false;
  sorted([&] { has_cycle = true; });
  return has_cycle;
}

}  // namespace structout::json
