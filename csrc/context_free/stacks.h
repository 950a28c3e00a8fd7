// The stacks of a text in a grammar: sets of stacks, each with one number.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/limits.h"
#include "context_free/closure_scratch.h"
#include "context_free/network.h"
#include "context_free/number_tables.h"

namespace structout::context_free {

// The number of a set of stacks. Its items are the states on top; below each is the node of
// the stacks that the state's rule returns to.
using Node = uint32_t;

struct Item {
  uint32_t state;
  Node below;
  bool operator==(const Item& other) const { return state == other.state && below == other.below; }
  bool operator<(const Item& other) const { return state != other.state ? state < other.state : below < other.below; }
};

// An embedded text that may begin, and the stacks after it, which are not closed: see
// Stacks::returned().
struct EmbeddedStart {
  uint32_t language;
  Node below;
};

// Special states, greater than all others. kEndOfText is the end of the whole text. From
// kHole on they are holes: bottoms of stacks of which only the upper part counts, so that
// the same result serves for all stacks below.
constexpr uint32_t kMaxHoles = 255, kHole = kNone - kMaxHoles, kEndOfText = kNone;

// A graph-structured stack (Tomita, "Efficient Parsing for Natural Language", 1986) with
// hash-consing. Equal sets are stored once, and items of the same state are merged by the
// union of the stacks below them. So a set is stored as the minimal acyclic automaton of
// its stacks, and its number is exact, however deep the stacks are: equal numbers, equal
// sets.
//
// The sets that start(), after() and returned() make are closed: each item's state reads a
// symbol or an embedded text, or is an end, since calls and returns have been followed. A
// known step costs a hash lookup, a new one a closure() or a look at the last ones.
//
// Exceptions leave it as it was, apart from new sets that nobody refers to.
class Stacks {
 public:
  static constexpr Node kDead = 0, kBottom = 1, kAboveHole = 2;  // no stack; one of kEndOfText; one of the first hole

  explicit Stacks(const Network& network);

  // The stacks at the start of a text.
  Node start(engine::Budget& budget);

  // The stacks after a symbol, kDead if no state on top reads it.
  Node after(Node node, uint32_t symbol, engine::Budget& budget);

  // The stacks after a call returns to those of `below`.
  Node returned(Node below, engine::Budget& budget);

  // The embedded texts that may begin, each language once.
  const std::vector<EmbeddedStart>& embedded_starts(Node node, engine::Budget& budget);

  // The state alone, above a hole. `is_closed`: true if only its own symbols count;
  // otherwise its calls and returns are followed.
  Node above_hole(uint32_t state, bool is_closed, engine::Budget& budget) {
    return above(state, kAboveHole, is_closed, budget);
  }
  Node above(uint32_t state, Node below, bool is_closed, engine::Budget& budget);

  // One of kMaxHoles holes, alone.
  Node hole(uint32_t number) { return number == 0 ? kAboveHole : nodes_.number_of({{kHole + number, kDead}}); }

  // The set of the items, in any order. Sorts and merges the argument.
  Node node_of(std::vector<Item>& items, engine::Budget& budget);

  // The union of sets. Cached by the sorted list of the nodes; a new one unites the stacks
  // below items of the same state, level by level.
  Node united(std::vector<Node> nodes, engine::Budget& budget);

  // True if `b` has all stacks of `a`. Conservatively false if that takes long to tell.
  bool is_subset(Node a, Node b, engine::Budget& budget);

  const Item* begin(Node node) const { return nodes_.begin(node); }
  const Item* end(Node node) const { return nodes_.end(node); }
  std::vector<Item> items(Node node) const { return nodes_.list(node); }
  bool may_end(Node node) const { return node != kDead && (nodes_.end(node) - 1)->state == kEndOfText; }
  bool has_hole(Node node) const { return holes_begin(node) != holes_end(node); }

  // The items that are holes, by increasing numbers.
  const Item* holes_begin(Node node) const {
    const Item* at = holes_end(node);
    while (at > nodes_.begin(node) && (at - 1)->state >= kHole) --at;
    return at;
  }
  const Item* holes_end(Node node) const { return nodes_.end(node) - (may_end(node) ? 1 : 0); }

  // True if a symbol or an embedded text may follow, so not only an end or a hole.
  bool reads_symbols(Node node) const { return node != kDead && nodes_.begin(node)->state < kHole; }

  // Copies a set of another object over the same network. `copies`: the copies so far, by
  // node.
  Node copied(Node node, const Stacks& from, PairTable& copies);

  uint32_t num_nodes() const { return nodes_.size(); }
  size_t memory_bytes() const {
    return nodes_.memory_bytes() + unions_.memory_bytes() + union_results_.capacity() * sizeof(Node) +
           after_.memory_bytes() + is_subset_.memory_bytes() + returned_.memory_bytes() +
           starts_numbers_.memory_bytes() + starts_.size() * sizeof(starts_[0]);
  }

 private:
  // Follows calls and returns from the items of the kernel, and empties it.
  Node closure(std::vector<Item>& kernel, engine::Budget& budget);

  const Network& network_;
  ListNumbers<Item> nodes_;
  ListNumbers<Node> unions_;
  std::vector<Node> union_results_;  // of each list in unions_, as far as known
  PairTable after_;                  // by node and symbol
  PairTable is_subset_;              // by two nodes: 0 or 1
  PairTable above_;                  // by state and is_closed as one number, and node below
  PairTable returned_;               // by node and 0
  PairTable starts_numbers_;         // by node and 0: into starts_
  std::deque<std::vector<EmbeddedStart>> starts_;
  uint32_t union_depth_ = 0;  // calls of united() inside each other

  // Scratch memory that closure() keeps from call to call.
  SeenBelow seen_;
  CallersByRank<Item> callers_;
  RecentClosures<Item> recent_;
  std::vector<Item> closure_items_, closed_items_;
};

}  // namespace structout::context_free
