// StateNumbers: a hash table that numbers states by their contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/room.h"

namespace structout::engine {

// Hash-consing: equal states get one number, and new ones are numbered from 0. The
// contents stay with the caller; the table has only hashes. A lookup compares contents
// only if the 64-bit hashes are equal.
class StateNumbers {
 public:
  uint32_t size() const { return uint32_t(hashes_.size()); }

  // Returns the number of the state with this hash for which is_equal(number), or a new
  // number and true. For a new one calls store(), which must store its contents, or throw
  // and store nothing. If it throws, no number is added.
  template <typename IsEqual, typename Store>
  std::pair<uint32_t, bool> find_or_add(uint64_t hash, IsEqual is_equal, Store store) {
    size_t mask = slots_.size() - 1, slot = hash & mask;
    for (; slots_[slot] != kEmptySlot; slot = (slot + 1) & mask) {
      if (hashes_[slots_[slot]] == hash && is_equal(slots_[slot])) return {slots_[slot], false};
    }
    make_room(hashes_);
    if (2 * (hashes_.size() + 1) > slots_.size()) {
      grow();
      slot = free_slot(hash);
    }
    store();
    uint32_t number = size();
    slots_[slot] = number;
    hashes_.push_back(hash);
    return {number, true};
  }

  // For callers that drop the table after an error.
  template <typename IsEqual>
  std::pair<uint32_t, bool> find_or_add(uint64_t hash, IsEqual is_equal) {
    return find_or_add(hash, is_equal, [] {});
  }

 private:
  static constexpr uint32_t kEmptySlot = UINT32_MAX;

  void grow() {
    slots_ = std::vector<uint32_t>(2 * slots_.size(), kEmptySlot);
    for (uint32_t number = 0; number < size(); ++number) slots_[free_slot(hashes_[number])] = number;
  }

  size_t free_slot(uint64_t hash) const {
    size_t mask = slots_.size() - 1, slot = hash & mask;
    while (slots_[slot] != kEmptySlot) slot = (slot + 1) & mask;
    return slot;
  }

  std::vector<uint64_t> hashes_;                                              // by number
  std::vector<uint32_t> slots_ = std::vector<uint32_t>(1 << 10, kEmptySlot);  // open addressing
};

}  // namespace structout::engine
