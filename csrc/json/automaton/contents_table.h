// Numbers for the lists that states, objects and plans consist of.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/hash.h"
#include "base/state_numbers.h"

namespace structout::json {

using Numbers = std::vector<uint32_t>;

// Stores each list once (hash consing): equal lists have one number, so that comparing two
// takes constant time. number_of() takes time linear in the list. Nothing is ever removed.
template <typename Contents>
class ContentsTable {
 public:
  uint32_t number_of(const Contents& contents) {
    uint64_t hash = contents.size();
    for (uint32_t value : contents) hash = engine::mix(hash, value);
    auto is_equal = [&](uint32_t other) { return contents_[other] == contents; };
    return numbers_.find_or_add(hash, is_equal, [&] { contents_.push_back(contents); }).first;
  }
  const Contents& operator[](uint32_t number) const { return contents_[number]; }

 private:
  engine::StateNumbers numbers_;
  std::deque<Contents> contents_;
};

using ListTable = ContentsTable<Numbers>;

}  // namespace structout::json
