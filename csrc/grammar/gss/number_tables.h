// Tables with numbers for keys, and lists that are stored once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/state_numbers.h"

namespace structout::context_free {

// A hash table from pairs of numbers to numbers: open addressing, at most half full.
class PairTable {
 public:
  static constexpr uint32_t kMissing = UINT32_MAX;

  uint32_t find(uint32_t a, uint32_t b) const {
    for (size_t slot = slot_of(a, b);; slot = (slot + 1) & (slots_.size() - 1)) {
      const Slot& found = slots_[slot];
      if (found.value == kMissing) return kMissing;
      if (found.a == a && found.b == b) return found.value;
    }
  }

  // The pair must be there.
  void set(uint32_t a, uint32_t b, uint32_t value) {
    size_t at = slot_of(a, b);
    while (slots_[at].value == kMissing || slots_[at].a != a || slots_[at].b != b) at = (at + 1) & (slots_.size() - 1);
    slots_[at].value = value;
  }

  // The pair must be missing, and `value` must not be kMissing.
  void add(uint32_t a, uint32_t b, uint32_t value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    config({a, b, value});
    ++size_;
  }

  // Calls visit(a, b, value) for all pairs.
  template <typename Visit>
  void visit(Visit visit) const {
    for (const Slot& slot : slots_) {
      if (slot.value != kMissing) visit(slot.a, slot.b, slot.value);
    }
  }

  void clear() noexcept {
    std::fill(slots_.begin(), slots_.end(), Slot());
    size_ = 0;
  }

  size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t a = 0, b = 0, value = kMissing;
  };

  size_t slot_of(uint32_t a, uint32_t b) const {
    return size_t(engine::mix(0, uint64_t(a) << 32 | b)) & (slots_.size() - 1);
  }

  void config(const Slot& slot) {
    size_t at = slot_of(slot.a, slot.b);
    while (slots_[at].value != kMissing) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }

  void grow() {
    std::vector<Slot> twice(2 * slots_.size());
    std::vector<Slot> before = std::exchange(slots_, std::move(twice));
    for (const Slot& slot : before) {
      if (slot.value != kMissing) config(slot);
    }
  }

  size_t size_ = 0;
  std::vector<Slot> slots_ = std::vector<Slot>(1 << 6);  // open addressing
};

// Lists of elements without padding, each stored once and named by a number.
template <typename Element>
class ListNumbers {
 public:
  uint32_t number_of(const std::vector<Element>& list) {
    static_assert(std::is_trivially_copyable_v<Element>);
    uint64_t hash = engine::hash_bytes(reinterpret_cast<const uint8_t*>(list.data()), list.size() * sizeof(Element));
    auto is_equal = [&](uint32_t other) { return std::equal(begin(other), end(other), list.begin(), list.end()); };
    auto store = [&] {
      engine::make_room(ends_);
      elements_.insert(elements_.end(), list.begin(), list.end());
      ends_.push_back(uint32_t(elements_.size()));
    };
    return numbers_.find_or_add(hash, is_equal, store).first;
  }

  uint32_t size() const { return numbers_.size(); }
  const Element* begin(uint32_t number) const { return elements_.data() + (number == 0 ? 0 : ends_[number - 1]); }
  const Element* end(uint32_t number) const { return elements_.data() + ends_[number]; }
  size_t count(uint32_t number) const { return size_t(end(number) - begin(number)); }

  // A copy, which stays valid while lists are added.
  std::vector<Element> list(uint32_t number) const { return {begin(number), end(number)}; }

  size_t memory_bytes() const {
    constexpr size_t kBytesPerNumber = sizeof(uint64_t) + 5 * sizeof(uint32_t);  // with the table's free slots
    return elements_.capacity() * sizeof(Element) + ends_.capacity() * sizeof(uint32_t) + size() * kBytesPerNumber;
  }

 private:
  engine::StateNumbers numbers_;
  std::vector<Element> elements_;
  std::vector<uint32_t> ends_;
};

}  // namespace structout::context_free
