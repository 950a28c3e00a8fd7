// The set of branches that the search for a mask has already met.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "grammar/gss/stacks.h"

namespace structout::context_free {

// One open end of the search for a mask: the stacks of `node` continue from the trie nodes
// in the list `trie_nodes`, which is a number from Masks::list_of().
struct Branch {
  uint32_t trie_nodes;
  GssNode node;
  uint32_t lexer_state;
  bool is_closed;  // see Stacks::above_unknown()
  bool operator==(const Branch& other) const {
    return trie_nodes == other.trie_nodes && node == other.node && lexer_state == other.lexer_state &&
           is_closed == other.is_closed;
  }
};

// A hash set with open addressing. A mask has few branches and takes little time, so
// clear() does not visit the buckets: it starts a new round, and buckets of earlier rounds
// count as empty.
class BranchSet {
 public:
  void clear() {
    size_ = 0;
    if (++round_ != 0) return;
    buckets_.assign(buckets_.size(), {});
    round_ = 1;
  }

  // Returns true if the branch was not in the set yet.
  bool insert(const Branch& branch) {
    Bucket& bucket = buckets_[bucket_of(branch)];
    if (bucket.round == round_) return false;
    bucket = {branch, round_};
    if (2 * ++size_ > buckets_.size()) grow();
    return true;
  }

  size_t memory_bytes() const { return buckets_.capacity() * sizeof(Bucket); }

 private:
  struct Bucket {
    Branch branch{};
    uint32_t round = 0;  // of its insertion
  };

  size_t bucket_of(const Branch& branch) const {
    uint64_t hash = engine::mix(uint64_t(branch.lexer_state) << 1 | uint64_t(branch.is_closed),
                                uint64_t(branch.trie_nodes) << 32 | branch.node);
    size_t at = size_t(hash) & (buckets_.size() - 1);
    while (buckets_[at].round == round_ && !(buckets_[at].branch == branch)) at = (at + 1) & (buckets_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Bucket> before = std::exchange(buckets_, std::vector<Bucket>(2 * buckets_.size()));
    for (const Bucket& bucket : before) {
      if (bucket.round == round_) buckets_[bucket_of(bucket.branch)] = bucket;
    }
  }

  uint32_t round_ = 1;
  size_t size_ = 0;
  std::vector<Bucket> buckets_ = std::vector<Bucket>(1 << 10);
};

}  // namespace structout::context_free
