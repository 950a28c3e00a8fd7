// The set of branches that the search for a mask has already met.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "context_free/stacks.h"

namespace structout::context_free {

// One open end of the search for a mask: the stacks of `node` go on from the trie nodes in
// the list `trie_nodes`, which is a number from Masks::list_of().
struct Branch {
  uint32_t trie_nodes;
  Node node;
  uint32_t lexer_state;
  bool is_closed;  // see Stacks::above_hole()
  bool operator==(const Branch& other) const {
    return trie_nodes == other.trie_nodes && node == other.node && lexer_state == other.lexer_state &&
           is_closed == other.is_closed;
  }
};

// A hash set with open addressing. A mask has few branches and takes little time, so
// clear() does not visit the slots: it starts a new round, and slots of earlier rounds
// count as empty.
class BranchSet {
 public:
  void clear() {
    size_ = 0;
    if (++round_ != 0) return;
    slots_.assign(slots_.size(), {});
    round_ = 1;
  }

  // Returns true if the branch was not in the set yet.
  bool insert(const Branch& branch) {
    Slot& slot = slots_[place_of(branch)];
    if (slot.round == round_) return false;
    slot = {branch, round_};
    if (2 * ++size_ > slots_.size()) grow();
    return true;
  }

  size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    Branch branch{};
    uint32_t round = 0;  // of its insertion
  };

  size_t place_of(const Branch& branch) const {
    uint64_t hash = engine::mix(uint64_t(branch.lexer_state) << 1 | uint64_t(branch.is_closed),
                                uint64_t(branch.trie_nodes) << 32 | branch.node);
    size_t at = size_t(hash) & (slots_.size() - 1);
    while (slots_[at].round == round_ && !(slots_[at].branch == branch)) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    for (const Slot& slot : before) {
      if (slot.round == round_) slots_[place_of(slot.branch)] = slot;
    }
  }

  uint32_t round_ = 1;
  size_t size_ = 0;
  std::vector<Slot> slots_ = std::vector<Slot>(1 << 10);
};

}  // namespace structout::context_free
