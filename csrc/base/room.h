// Room for elements, taken before anything changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace structout::engine {

// Lets a vector take `count` more elements without an allocation.
template <typename Element>
void make_room(std::vector<Element>& elements, size_t count = 1) {
  size_t size = elements.size() + count;
  if (size > elements.capacity()) elements.reserve(std::max({size_t(8), size, 2 * elements.size()}));
}

}  // namespace structout::engine
