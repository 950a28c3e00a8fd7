// The stacks of a text in a grammar: sets of stacks, each with one number.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/limits.h"
#include "grammar/gss/closure_scratch.h"
#include "grammar/gss/number_tables.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

// A node of the graph-structured stack: the number of a set of stacks.
using GssNode = uint32_t;

// One top of a set of stacks: the state, and the node of the stacks that its rule returns
// to.
struct StackTop {
  uint32_t state;
  GssNode below;
  bool operator==(const StackTop& other) const { return state == other.state && below == other.below; }
  bool operator<(const StackTop& other) const {
    return state != other.state ? state < other.state : below < other.below;
  }
};

// An embedded text that may begin, and the stacks after it, which are not closed: see
// Stacks::returned().
struct EmbeddedStart {
  uint32_t language;
  GssNode below;
};

// Special states, greater than all others. kEndOfText is the end of the whole text. From
// kUnknownContext on they are unknown contexts: each stands for all stacks below the upper
// part that is looked at, so that the same result serves for all of them.
constexpr uint32_t kMaxUnknowns = 255, kUnknownContext = kNone - kMaxUnknowns, kEndOfText = kNone;

// A graph-structured stack (Tomita, "Efficient Parsing for Natural Language", 1986) with
// hash-consing. Equal sets are stored once, and stack tops of the same state are merged by
// the union of the stacks below them. So a set is stored as the minimal acyclic automaton
// of its stacks, and its number is exact, however deep the stacks are: equal numbers, equal
// sets.
//
// In a very ambiguous grammar that automaton may be exponential in the length of the text.
// A union that takes too much work is merged in its topmost level only: below that, stack
// tops of the same state stay apart, as in Tomita's graph, unless one of them has all stacks
// of another. Then equal sets may have different numbers, so different numbers do not tell
// that sets differ.
//
// The sets that start(), after() and returned() make are closed: each stack top's state
// reads a symbol or an embedded text, or is an end, since calls and returns have been
// followed. A known step costs a hash lookup, a new one a closure() or a look at the last
// ones.
//
// Exceptions leave it as it was, apart from new sets that nobody refers to.
class Stacks {
 public:
  static constexpr GssNode kDead = 0, kBottom = 1,
                           kAboveUnknown = 2;  // no stack; one of kEndOfText; one of the first unknown context

  // `max_union_work`: steps of a union, after which only its topmost level is merged.
  static constexpr uint64_t kMaxUnionWork = 1 << 8;
  explicit Stacks(const Network& network, uint64_t max_union_work = kMaxUnionWork);

  // The stacks at the start of a text.
  GssNode start(engine::Budget& budget);

  // The stacks after a symbol, kDead if no state on top reads it.
  GssNode after(GssNode node, uint32_t symbol, engine::Budget& budget);

  // The stacks after a call returns to those of `below`.
  GssNode returned(GssNode below, engine::Budget& budget);

  // The embedded texts that may begin, each language once.
  const std::vector<EmbeddedStart>& embedded_starts(GssNode node, engine::Budget& budget);

  // The state alone, above an unknown context. `is_closed`: true if only its own symbols
  // count; otherwise its calls and returns are followed.
  GssNode above_unknown(uint32_t state, bool is_closed, engine::Budget& budget) {
    return above(state, kAboveUnknown, is_closed, budget);
  }
  GssNode above(uint32_t state, GssNode below, bool is_closed, engine::Budget& budget);

  // One of kMaxUnknowns unknown contexts, alone.
  GssNode unknown(uint32_t number) {
    return number == 0 ? kAboveUnknown : nodes_.number_of({{kUnknownContext + number, kDead}});
  }

  // The node with these tops, given in any order. Sorts and merges the argument.
  GssNode node_of(std::vector<StackTop>& tops, engine::Budget& budget);

  // The union of sets. Cached by the sorted list of the nodes.
  GssNode united(std::vector<GssNode> nodes, engine::Budget& budget);

  // True if `b` has all stacks of `a`. Conservatively false if that takes long to tell, or
  // if several stack tops of the same state have to be taken together.
  bool is_subset(GssNode a, GssNode b, engine::Budget& budget);

  const StackTop* begin(GssNode node) const { return nodes_.begin(node); }
  const StackTop* end(GssNode node) const { return nodes_.end(node); }
  std::vector<StackTop> tops(GssNode node) const { return nodes_.list(node); }
  bool may_end(GssNode node) const { return node != kDead && (nodes_.end(node) - 1)->state == kEndOfText; }
  bool has_unknown(GssNode node) const { return unknowns_begin(node) != unknowns_end(node); }

  // The stack tops that are unknown contexts, by increasing numbers.
  const StackTop* unknowns_begin(GssNode node) const {
    const StackTop* at = unknowns_end(node);
    while (at > nodes_.begin(node) && (at - 1)->state >= kUnknownContext) --at;
    return at;
  }
  const StackTop* unknowns_end(GssNode node) const { return nodes_.end(node) - (may_end(node) ? 1 : 0); }

  // True if a symbol or an embedded text may follow, so not only an end or an unknown
  // context.
  bool reads_symbols(GssNode node) const { return node != kDead && nodes_.begin(node)->state < kUnknownContext; }

  // Copies a set of another object over the same network. `copies`: the copies so far, by
  // node.
  GssNode copied(GssNode node, const Stacks& from, PairTable& copies);

  // Copies what is known of the subsets among copied sets: in an ambiguous grammar it takes
  // long to find.
  void copy_subsets(const Stacks& from, const PairTable& copies);

  uint32_t num_nodes() const { return nodes_.size(); }
  size_t memory_bytes() const {
    return nodes_.memory_bytes() + unions_.memory_bytes() + union_results_.capacity() * sizeof(GssNode) +
           after_.memory_bytes() + is_subset_.memory_bytes() + returned_.memory_bytes() +
           starts_numbers_.memory_bytes() + starts_.size() * sizeof(starts_[0]);
  }

 private:
  static constexpr GssNode kTooLarge = kNone - 1;  // of a union that merged() has given up

  // The union of sets, in which stack tops of the same state are merged, level by level.
  // kNone if that takes too much work. Sorts the argument.
  GssNode merged(std::vector<GssNode>& nodes, engine::Budget& budget);

  // The different stack tops of some nodes.
  std::vector<StackTop> tops_of(const std::vector<GssNode>& nodes, engine::Budget& budget);

  // The node with these different tops, in which those of the same state stay apart.
  // Changes the argument.
  GssNode node_apart(std::vector<StackTop>& tops, engine::Budget& budget);

  // Drops nodes whose stacks another one has, as far as the last ones are compared.
  void remove_subsets(std::vector<GssNode>& nodes, engine::Budget& budget);

  // Follows calls and returns from the stack tops of the kernel, and empties it.
  GssNode closure(std::vector<StackTop>& kernel, engine::Budget& budget);

  const Network& network_;
  const uint64_t max_union_work_;
  ListNumbers<StackTop> nodes_;
  ListNumbers<GssNode> unions_;
  std::vector<GssNode> union_results_;  // of each list in unions_, as far as known
  PairTable after_;                     // by node and symbol
  PairTable is_subset_;                 // by two nodes: 0 or 1
  PairTable above_;                     // by state and is_closed as one number, and node below
  PairTable returned_;                  // by node and 0
  PairTable starts_numbers_;            // by node and 0: into starts_
  std::deque<std::vector<EmbeddedStart>> starts_;
  uint32_t union_depth_ = 0;     // calls of merged() inside each other
  uint64_t union_began_at_ = 0;  // steps of the budget before the outermost of them

  // Scratch memory that closure() keeps from call to call.
  SeenBelow seen_;
  PairSet met_;  // of tops_of()
  CallersByRank<StackTop> callers_;
  RecentClosures<StackTop> recent_;
  std::vector<StackTop> closure_tops_, closed_tops_;
};

}  // namespace structout::context_free
