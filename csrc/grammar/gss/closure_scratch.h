// Scratch memory for the closure of a set of stacks: see Stacks::closure().
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

// A set of pairs of numbers: open addressing, at most half full. clear() does not visit the
// slots: it starts a new round, and slots of earlier rounds count as empty.
class PairSet {
 public:
  void clear() {
    size_ = 0;
    if (++round_ != 0) return;
    slots_.assign(slots_.size(), Slot());
    round_ = 1;
  }

  // Returns true if the pair was not in the set yet.
  bool insert(uint32_t a, uint32_t b) {
    Slot& slot = slots_[slot_of(a, b)];
    if (slot.round == round_) return false;
    slot = {a, b, round_};
    if (2 * ++size_ > slots_.size()) grow();
    return true;
  }

 private:
  struct Slot {
    uint32_t a = 0, b = 0, round = 0;
  };

  size_t slot_of(uint32_t a, uint32_t b) const {
    size_t at = size_t(engine::mix(0, uint64_t(a) << 32 | b)) & (slots_.size() - 1);
    while (slots_[at].round == round_ && (slots_[at].a != a || slots_[at].b != b)) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    for (const Slot& slot : before) {
      if (slot.round == round_) slots_[slot_of(slot.a, slot.b)] = slot;
    }
  }

  uint32_t round_ = 1;
  size_t size_ = 0;
  std::vector<Slot> slots_ = std::vector<Slot>(1 << 6);
};

// For each state, the nodes that a closure has already met below it. clear() does not visit
// the states: it starts a new round, and entries of earlier rounds do not count.
class SeenBelow {
 public:
  explicit SeenBelow(uint32_t num_states) : last_(num_states) {}

  void clear() {
    entries_.clear();
    met_.clear();
    if (++round_ != 0) return;
    last_.assign(last_.size(), Last());
    round_ = 1;
  }

  // Adds a node below a state. Returns false, and adds nothing, if it is there, or if
  // `has_all(other)` is true for one of the last `num_compared` nodes below the state: that
  // one makes the new node redundant.
  template <typename HasAll>
  bool add(uint32_t state, uint32_t below, size_t num_compared, HasAll has_all) {
    Last& last = last_[state];
    uint32_t entry = last.round == round_ ? last.entry : kNone;
    for (uint32_t at = entry; at != kNone && num_compared > 0; at = entries_[at].before, --num_compared) {
      if (has_all(entries_[at].below)) return false;
    }
    if (!met_.insert(state, below)) return false;
    last = {round_, uint32_t(entries_.size())};
    entries_.push_back({below, entry});
    return true;
  }

 private:
  struct Last {
    uint32_t round = 0, entry = 0;
  };
  struct Entry {
    uint32_t below, before;  // `before`: the previous entry of the same state
  };

  uint32_t round_ = 1;
  std::vector<Last> last_;  // by state
  std::vector<Entry> entries_;
  PairSet met_;  // of all entries
};

// The callers of rules that a closure still has to begin, by the rules' ranks. In the order
// of ranks each rule comes after all rules that begin with it, so it is begun once, for all
// callers together.
template <typename StackTop>
class CallersByRank {
 public:
  explicit CallersByRank(uint32_t num_rules) : lists_(num_rules), is_pending_((num_rules + 63) / 64) {}

  void clear() {
    for (uint32_t rank = 0; (rank = next(rank)) != kNone; ++rank) take(rank);
    taken_.clear();
  }

  std::vector<StackTop>& of(uint32_t rank) {
    is_pending_[rank / 64] |= uint64_t(1) << rank % 64;
    return lists_[rank];
  }

  // Returns the lowest rank from `rank` on that has callers, or kNone.
  uint32_t next(uint32_t rank) const {
    for (size_t word = rank / 64; word < is_pending_.size(); ++word) {
      uint64_t bits = is_pending_[word] & (word == rank / 64 ? ~uint64_t(0) << rank % 64 : ~uint64_t(0));
      if (bits != 0) return uint32_t(64 * word) + uint32_t(__builtin_ctzll(bits));
    }
    return kNone;
  }

  // Removes and returns the callers of a rank. The reference is valid until the next call.
  std::vector<StackTop>& take(uint32_t rank) {
    is_pending_[rank / 64] &= ~(uint64_t(1) << rank % 64);
    taken_.clear();
    std::swap(taken_, lists_[rank]);
    return taken_;
  }

 private:
  std::vector<std::vector<StackTop>> lists_;
  std::vector<uint64_t> is_pending_;
  std::vector<StackTop> taken_;
};

// A small direct-mapped cache from the stack tops of a kernel to the node of their closure.
// Many bytes lead from a node to the same stack tops, as letters inside a string do. A hit
// saves the closure; a miss costs only the hash and the comparison of the stack tops.
template <typename StackTop>
class RecentClosures {
 public:
  struct Entry {
    std::vector<StackTop> kernel;
    uint32_t node = kNone;
  };
  // Returns the entry for these stack tops. If its `kernel` differs from them, it is a
  // miss, and the caller overwrites it.
  Entry& of(const std::vector<StackTop>& kernel) {
    auto bytes = reinterpret_cast<const uint8_t*>(kernel.data());
    return entries_[engine::hash_bytes(bytes, kernel.size() * sizeof(StackTop)) % entries_.size()];
  }

 private:
  std::vector<Entry> entries_ = std::vector<Entry>(64);
};

}  // namespace structout::context_free
