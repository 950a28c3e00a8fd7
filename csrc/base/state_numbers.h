// StateNumbers: a hash table that numbers states by their contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace structout::engine {

// Equal states get one number; new ones are numbered from 0. The contents stay with the
// caller.
class StateNumbers {
 public:
  uint32_t size() const { return uint32_t(hashes_.size()); }

  // The number of the state with this hash for which is_equal(number), or the next
  // number, and whether it is new.
  template <typename IsEqual>
  std::pair<uint32_t, bool> find_or_add(uint64_t hash, IsEqual is_equal) {
    size_t mask = slots_.size() - 1, slot = hash & mask;
    for (; slots_[slot] != kEmptySlot; slot = (slot + 1) & mask) {
      if (hashes_[slots_[slot]] == hash && is_equal(slots_[slot])) return {slots_[slot], false};
    }
    uint32_t number = size();
    slots_[slot] = number;
    hashes_.push_back(hash);
    if (2 * hashes_.size() > slots_.size()) grow();
    return {number, true};
  }

 private:
  static constexpr uint32_t kEmptySlot = UINT32_MAX;

  void grow() {
    slots_.assign(2 * slots_.size(), kEmptySlot);
    size_t mask = slots_.size() - 1;
    for (uint32_t number = 0; number < size(); ++number) {
      size_t slot = hashes_[number] & mask;
      while (slots_[slot] != kEmptySlot) slot = (slot + 1) & mask;
      slots_[slot] = number;
    }
  }

  std::vector<uint64_t> hashes_;                                              // by number
  std::vector<uint32_t> slots_ = std::vector<uint32_t>(1 << 10, kEmptySlot);  // open addressing
};

}  // namespace structout::engine
