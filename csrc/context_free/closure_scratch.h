// What the closure of a set of stacks needs while it is computed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "context_free/network.h"

namespace structout::context_free {

// The nodes that were seen below each state. It is emptied without a look at its states.
class SeenBelow {
 public:
  explicit SeenBelow(uint32_t num_states) : last_(num_states) {}

  void clear() {
    entries_.clear();
    if (++round_ != 0) return;
    last_.assign(last_.size(), Last());
    round_ = 1;
  }

  // Returns whether the node is new: whether `has_all(other)` is false for the last few
  // that were added below the state.
  template <typename HasAll>
  bool add(uint32_t state, uint32_t below, size_t num_compared, HasAll has_all) {
    Last& last = last_[state];
    uint32_t entry = last.round == round_ ? last.entry : kNone;
    for (uint32_t at = entry; at != kNone && num_compared > 0; at = entries_[at].before, --num_compared) {
      if (has_all(entries_[at].below)) return false;
    }
    last = {round_, uint32_t(entries_.size())};
    entries_.push_back({below, entry});
    return true;
  }

 private:
  struct Last {
    uint32_t round = 0, entry = 0;
  };
  struct Entry {
    uint32_t below, before;  // the entry of the same state that was added before
  };

  uint32_t round_ = 1;
  std::vector<Last> last_;  // by state
  std::vector<Entry> entries_;
};

// The callers of rules, by the rules' ranks.
template <typename Item>
class CallersByRank {
 public:
  explicit CallersByRank(uint32_t num_rules) : lists_(num_rules), is_pending_((num_rules + 63) / 64) {}

  void clear() {
    for (uint32_t rank = 0; (rank = next(rank)) != kNone; ++rank) take(rank);
    taken_.clear();
  }

  std::vector<Item>& of(uint32_t rank) {
    is_pending_[rank / 64] |= uint64_t(1) << rank % 64;
    return lists_[rank];
  }

  // The lowest rank from `rank` on that has callers, or kNone.
  uint32_t next(uint32_t rank) const {
    for (size_t word = rank / 64; word < is_pending_.size(); ++word) {
      uint64_t bits = is_pending_[word] & (word == rank / 64 ? ~uint64_t(0) << rank % 64 : ~uint64_t(0));
      if (bits != 0) return uint32_t(64 * word) + uint32_t(__builtin_ctzll(bits));
    }
    return kNone;
  }

  // The callers of a rank, which has none then. They stay until the next call.
  std::vector<Item>& take(uint32_t rank) {
    is_pending_[rank / 64] &= ~(uint64_t(1) << rank % 64);
    taken_.clear();
    std::swap(taken_, lists_[rank]);
    return taken_;
  }

 private:
  std::vector<std::vector<Item>> lists_;
  std::vector<uint64_t> is_pending_;
  std::vector<Item> taken_;
};

// The last closures of sets of items. Many bytes lead from a node to the same items.
template <typename Item>
class RecentClosures {
 public:
  struct Entry {
    std::vector<Item> kernel;
    uint32_t node = kNone;
  };
  // What is known of these items, or what they replace.
  Entry& of(const std::vector<Item>& kernel) {
    auto bytes = reinterpret_cast<const uint8_t*>(kernel.data());
    return entries_[engine::hash_bytes(bytes, kernel.size() * sizeof(Item)) % entries_.size()];
  }

 private:
  std::vector<Entry> entries_ = std::vector<Entry>(64);
};

}  // namespace structout::context_free
