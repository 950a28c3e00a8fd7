// Summaries: the partial masks that tokens reach from the states on top of the stacks
// alone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "grammar/token_masks/masks.h"

namespace structout::context_free {

// With a lexer a partial mask belongs to a state of the lexer, and the lexemes after its
// continuations depend on the stacks; mostly on the states on top alone, since tokens
// seldom leave many rules. So nodes with the same states on top share one search for
// partial masks, whose result is a summary. For this search each state stands above an
// unknown context instead of its node below. A summary has a continuation wherever lexemes
// lead to an unknown context; from there MaskSearch continues with the real stacks. For
// example, the same summary serves after an item of a JSON array, however deep the array is
// nested.
//
// Used only for networks that read nothing but terminals: see is_of_use().
class Masks::Summaries {
 public:
  struct Ending {  // tokens that are allowed only if the text can be finished after them
    GssNode node;
    uint32_t lexer_state, partial;
  };
  struct Continuation {
    uint32_t trie_nodes;
    GssNode node;  // with an unknown context, or a node whose top needs too many of them
    bool may_ignore;
  };
  struct Summary {
    std::vector<uint32_t> partial_masks;  // with tokens, by increasing numbers
    std::vector<Ending> endings;
    std::vector<Continuation> continuations;
  };

  // The states on top of a node, each above an unknown context. Equal nodes below share
  // one.
  class Tops {
   public:
    // `stacks`: the real stacks that the node belongs to. They and `summaries` must outlive
    // this.
    Tops(Summaries& summaries, Stacks& stacks, GssNode node, engine::Budget& budget);

    // The node of these states, each above its unknown context. Dead if there are too many.
    GssNode node() const { return node_; }

    // Returns the real node for a node above these unknown contexts: replaces these by the
    // real nodes below. `is_below`: true if the node lies below a state, so that no rule
    // has returned to it yet.
    GssNode filled(GssNode node, bool is_below, engine::Budget& budget);

   private:
    const Stacks& from_;
    Stacks& to_;
    GssNode node_ = Stacks::kDead;
    std::vector<GssNode> belows_;                  // by unknown context: the real node
    std::unordered_map<uint64_t, GssNode> known_;  // by node and is_below
  };

  Summaries(Masks& masks, const Network& network, Lexer& lexer) : masks_(masks), reader_(network, lexer) {}

  // True for networks with a lexer but without stops, embedded languages, tokens matched by
  // id and token limits.
  static bool is_of_use(const Network& network);

  // Returns a summary. A known one costs two table lookups, a new one the search; see
  // Masks::list_of() for `trie_nodes`, and Tops::node() for `tops`.
  const Summary& of(uint32_t trie_nodes, GssNode tops, uint32_t lexer_state, engine::Budget& budget);

  size_t memory_bytes() const;

 private:
  Summary computed(uint32_t trie_nodes, GssNode tops, uint32_t lexer_state, engine::Budget& budget);

  Masks& masks_;
  Reader reader_;            // of nodes above unknown contexts
  PairTable start_numbers_;  // by top and state of the lexer
  uint32_t num_starts_ = 0;
  PairTable numbers_;  // by list of nodes of the trie and start: into summaries_
  std::deque<Summary> summaries_;
  size_t summary_bytes_ = 0;
};

}  // namespace structout::context_free
