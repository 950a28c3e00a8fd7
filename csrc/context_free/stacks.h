// Where a text may stand in a grammar: sets of stacks, each with one number.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/limits.h"
#include "context_free/closure_scratch.h"
#include "context_free/network.h"
#include "context_free/number_tables.h"

namespace structout::context_free {

// A set of stacks. Its items are the states on top, and below each the set of stacks that
// the rule returns to.
using Node = uint32_t;

struct Item {
  uint32_t state;
  Node below;
  bool operator==(const Item& other) const { return state == other.state && below == other.below; }
  bool operator<(const Item& other) const { return state != other.state ? state < other.state : below < other.below; }
};

// Where a text of an embedded language may begin, and the stacks after it, which are not
// closed: see Stacks::returned().
struct EmbeddedStart {
  uint32_t language;
  Node below;
};

// In the place of a state, after all others: the end of the whole text, and from kHole on
// ends of parts of it that do not know what follows.
constexpr uint32_t kMaxHoles = 255, kHole = kNone - kMaxHoles, kEndOfText = kNone;

// Equal sets are stored once, and an item's stacks are united with those of other items
// of the same state. So a set is stored as the minimal acyclic automaton of its stacks,
// and its number is exact, however deep the stacks are: a graph-structured stack (Tomita,
// "Efficient Parsing for Natural Language", 1986) with hash-consing.
//
// Exceptions leave it as it was, apart from sets that nobody refers to.
class Stacks {
 public:
  static constexpr Node kDead = 0, kBottom = 1, kAboveHole = 2;  // no stack; one of kEndOfText; one of the first hole

  explicit Stacks(const Network& network);

  // The stacks at the start of a text.
  Node start(engine::Budget& budget);

  // The stacks after a symbol.
  Node after(Node node, uint32_t symbol, engine::Budget& budget);

  // The stacks after a call returns to those of `below`.
  Node returned(Node below, engine::Budget& budget);

  // The embedded texts that may begin, each language once.
  const std::vector<EmbeddedStart>& embedded_starts(Node node, engine::Budget& budget);

  // The state alone, above a hole. `is_closed`: only its own symbols; otherwise also what
  // it calls and returns to.
  Node above_hole(uint32_t state, bool is_closed, engine::Budget& budget) {
    return above(state, kAboveHole, is_closed, budget);
  }
  Node above(uint32_t state, Node below, bool is_closed, engine::Budget& budget);

  // One of kMaxHoles holes, alone.
  Node hole(uint32_t number) { return number == 0 ? kAboveHole : nodes_.number_of({{kHole + number, kDead}}); }

  // The set of items, in any order. They are changed.
  Node node_of(std::vector<Item>& items, engine::Budget& budget);

  Node united(std::vector<Node> nodes, engine::Budget& budget);

  // Whether a set has all stacks of another. False if it takes long to tell.
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

  // Whether a symbol or an embedded text may follow.
  bool reads_symbols(Node node) const { return node != kDead && nodes_.begin(node)->state < kHole; }

  // Adds a set of another object over the same network.
  Node copied(Node node, const Stacks& from, PairTable& copies);

  uint32_t num_nodes() const { return nodes_.size(); }
  size_t memory_bytes() const {
    return nodes_.memory_bytes() + unions_.memory_bytes() + union_results_.capacity() * sizeof(Node) +
           after_.memory_bytes() + is_subset_.memory_bytes() + returned_.memory_bytes() +
           starts_numbers_.memory_bytes() + starts_.size() * sizeof(starts_[0]);
  }

 private:
  // Changes its items.
  Node closure(std::vector<Item>& kernel, engine::Budget& budget);

  const Network& network_;
  ListNumbers<Item> nodes_;
  ListNumbers<Node> unions_;
  std::vector<Node> union_results_;  // of each list in unions_, as far as known
  PairTable after_;                  // by node and symbol
  PairTable is_subset_;              // by two nodes: 0 or 1
  PairTable above_;                  // by state and node below, and whether it is closed
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
