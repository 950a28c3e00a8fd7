// What tokens do from the states on top of a node, whatever lies below them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "context_free/masks.h"

namespace structout::context_free {

// With a lexer, pieces are of its states, and what follows the exit of a piece depends on
// the stacks. Mostly it depends only on the states on top of them: tokens seldom leave many
// rules. So the search for pieces that begins from the states on top, each above a hole that
// stands for its node below, is made once for all nodes with these states: a region. It
// stops where lexemes lead to a hole; there a search goes on with the real stacks.
//
// Only for networks in which nothing but terminals is read: see is_of_use().
class Masks::Regions {
 public:
  struct Ending {  // tokens that are only allowed where texts can be finished
    Node node;
    uint32_t lexer_state, piece;
  };
  struct Exit {
    uint32_t trie_nodes;
    Node node;  // with a hole, or a node whose top needs too many of them
    bool may_ignore;
  };
  struct Region {
    std::vector<uint32_t> pieces;  // with tokens, by increasing numbers
    std::vector<Ending> endings;
    std::vector<Exit> exits;
  };

  // The states on top of a node, each above a hole. Equal nodes below are one hole.
  class Top {
   public:
    // `stacks`: the real ones, which the node is of. They and `regions` must stay.
    Top(Regions& regions, Stacks& stacks, Node node, engine::Budget& budget);

    // The node of these states, each above its hole. Dead if there are too many holes.
    Node node() const { return node_; }

    // The real node for one above these holes. `is_below`: whether it lies below a state,
    // and has not been returned to.
    Node filled(Node node, bool is_below, engine::Budget& budget);

   private:
    const Stacks& from_;
    Stacks& to_;
    Node node_ = Stacks::kDead;
    std::vector<Node> belows_;                  // what each hole stands for
    std::unordered_map<uint64_t, Node> known_;  // by node and is_below
  };

  Regions(Masks& masks, const Network& network, Lexer& lexer) : masks_(masks), reader_(network, lexer) {}

  static bool is_of_use(const Network& network);

  const Region& of(uint32_t trie_nodes, Node top, uint32_t lexer_state, engine::Budget& budget);

  size_t memory_bytes() const;

 private:
  Region computed(uint32_t trie_nodes, Node top, uint32_t lexer_state, engine::Budget& budget);

  Masks& masks_;
  Reader reader_;            // of nodes above holes
  PairTable start_numbers_;  // by top and state of the lexer
  uint32_t num_starts_ = 0;
  PairTable numbers_;  // by list of nodes of the trie and start: into regions_
  std::deque<Region> regions_;
  size_t region_bytes_ = 0;
};

}  // namespace structout::context_free
