// Sets as sorted vectors.
#pragma once

#include <algorithm>
#include <vector>

namespace structout::engine {

// Sorts, and keeps one of equal values. One pass if they are sorted already.
template <typename Value>
void make_set(std::vector<Value>& values) {
  if (!std::is_sorted(values.begin(), values.end())) std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace structout::engine
