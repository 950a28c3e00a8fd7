// Masks: the tokens that may follow at a configuration of a text.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/completability/completability.h"
#include "grammar/gss/reader.h"
#include "grammar/token_masks/branch_set.h"
#include "grammar/token_masks/loops.h"
#include "token_masks/mask_store.h"
#include "token_masks/vocabulary.h"

namespace structout::context_free {

// A mask is the union of partial masks. A partial mask is context-independent: it describes
// the tokens below some nodes of the vocabulary's trie, read from one state of a rule (or
// of the lexer), whatever lies below that on the stack. It has the tokens that end there,
// and continuations: the nodes in front of which other tokens leave the rule (or the
// lexeme). What follows a continuation depends on the context. It is another partial mask,
// from the states that the rule returns to. For example, the token `"]` leaves the rule of
// a JSON value in front of `]`, and a partial mask of the array continues.
//
// So a partial mask is walked once, however deep the stack is, and configurations with the
// same partial masks share a mask. A configuration with known partial masks costs a search
// over their continuations; a new partial mask costs a walk over some subtrees of the trie.
// Further kinds of partial masks are the tokens from the begin of an embedded text, and the
// tokens that a state matches by their ids.
class Masks {
 public:
  using Branch = context_free::Branch;

  // `has_end(config)`: true if a text can be finished from the configuration. Called where
  // tokens end, since a lexer might not leave a path to the end.
  using HasEnd = std::function<bool(const LexerConfiguration&)>;

  Masks(const Network& network, Lexer& lexer, Completability& completability,
        std::shared_ptr<const engine::VocabularyTrie> vocabulary);
  ~Masks();

  // Returns the mask of a configuration, which must not be dead. Null if partial_masks_of()
  // returns nothing, or if there is no room for the mask.
  const engine::Mask* mask(Reader& reader, const LexerConfiguration& config, const HasEnd& has_end,
                           engine::Budget& budget);

  // Starts of a search: in front of all tokens, or after the nodes of the trie where
  // embedded texts end.
  Branch at(const LexerConfiguration& config) const { return {whole_trie_, config.node, config.lexer_state, true}; }
  Branch branch_after(const std::vector<uint32_t>& trie_nodes, GssNode below, Reader& reader, engine::Budget& budget);

  // Returns the partial masks that have tokens, by increasing numbers. Returns nothing if
  // there is no room for more partial masks, or if it is not sure that the text can be
  // finished after each token matched by its id.
  std::optional<std::vector<uint32_t>> partial_masks_of(Reader& reader, const std::vector<Branch>& branches,
                                                        const HasEnd& has_end, engine::Budget& budget);
  void add_tokens(const std::vector<uint32_t>& partial_masks, uint32_t* row) const;

  // Adds the tokens of a configuration by a walk over the whole trie that reads each byte
  // from full configurations, without partial masks. `is_allowed(config)` decides at the
  // end of each token.
  template <typename IsAllowed>
  void add_by_walk(Reader& reader, const Configuration& config, engine::Budget& budget, IsAllowed is_allowed,
                   uint32_t* row) const;

  // Adds only the tokens below a node of the trie; `config` is the configuration after the
  // bytes of the node.
  template <typename IsAllowed>
  void add_below(uint32_t trie_node, Reader& reader, const Configuration& config, engine::Budget& budget,
                 IsAllowed is_allowed, uint32_t* row) const;

  engine::MaskStore& store() { return store_; }
  uint32_t num_masks() const { return store_.size(); }  // different ones
  uint32_t num_partial_masks() const { return uint32_t(partial_masks_.size()); }
  uint64_t num_trie_steps() const { return num_trie_steps_; }
  size_t memory_bytes() const;

 private:
  struct Continuation {
    uint32_t label;       // the accepted terminals; without a lexer, an unknown context; 0 of embedded texts
    uint32_t trie_nodes;  // a list of trie_nodes_
  };
  // Tokens that end in a state of the lexer from which it is not sure that texts can be
  // finished. They are allowed if HasEnd is true for it and the present stacks.
  struct Guarded {
    uint32_t lexer_state;
    uint32_t partial;  // the number of the partial mask of these tokens
  };
  struct TokenSet {
    std::vector<uint32_t> listed;  // if they are few
    std::vector<uint32_t> row;     // or their mask
    bool is_empty() const { return listed.empty() && row.empty(); }
    void add_to(uint32_t* mask) const;
    size_t memory_bytes() const { return (listed.size() + row.size()) * sizeof(uint32_t); }
  };
  struct PartialMask {
    TokenSet tokens;
    std::vector<Continuation> continuations;
    std::vector<Guarded> guarded;
  };
  // A subtree fragment: a partial mask below one node of the trie. Large ones are cached,
  // since other walks come to the same node in the same state.
  struct Fragment {
    using Lists = std::vector<std::pair<uint32_t, std::vector<uint32_t>>>;
    TokenSet tokens;
    Lists continuations;  // nodes of the trie, by label
    Lists guarded;        // tokens, by the state of the lexer
    size_t memory_bytes() const;
  };
  class Walk;
  class MaskSearch;
  class Summaries;
  static constexpr size_t kMaxMaskBytes = 24 << 20, kMaxSummaryBytes = 12 << 20;
  static constexpr uint32_t kMaxReturns = 8, kMaxReturnNodes = 64;  // that a partial mask looks through
  static constexpr uint32_t kMaxUnknownsOfMask = 8;

  // Special arguments of partial_mask_of(). kEmbedded plus a language as the start: the
  // begin of an embedded text. kTokenIds instead of nodes of the trie: the tokens that a
  // state matches by their ids.
  static constexpr uint32_t kEmbedded = 1u << 31, kTokenIds = kNone - 1;

  const PartialMask& partial_mask(uint32_t number) const { return partial_masks_[number]; }
  void add_bytes(size_t bytes);
  uint32_t add_partial_mask(PartialMask partial);
  uint32_t partial_mask_of(uint32_t trie_nodes, uint32_t start, Reader& reader, engine::Budget& budget);

  // Returns the number of a list of nodes of the trie, in the form of trie_nodes_. The
  // argument has the nodes whose children's bytes come next.
  uint32_t list_of(std::vector<uint32_t> trie_nodes);

  // The start of the walk of a partial mask, without a lexer: the state of a stack top
  // above unknown contexts, and for each unknown context the real node.
  struct Start {
    GssNode node;
    std::vector<GssNode> belows;
  };
  Start start_of(const StackTop& top, bool is_closed, Stacks& stacks, engine::Budget& budget);

  // Copies the upper part of some stacks, down to a number of returns, and puts unknown
  // contexts below it. Gives up if it is large.
  class UpperPart;
  bool is_open_ended(GssNode start, engine::Budget& budget);

  // The stacks above unknown contexts after a byte.
  struct Next {
    GssNode node = kNone;
    uint8_t unknowns = 0;  // a bit for each
    bool reads_symbols = false, begins_embedded = false;
  };
  Next after(GssNode node, uint8_t byte, engine::Budget& budget) {
    size_t at = size_t(node) * network_.num_byte_classes() + network_.byte_class(byte);
    return at < after_.size() && after_[at].node != kNone ? after_[at] : computed_after(node, byte, budget);
  }
  Next computed_after(GssNode node, uint8_t byte, engine::Budget& budget);

  const Network& network_;
  Lexer& lexer_;
  Completability& completability_;
  std::shared_ptr<const engine::VocabularyTrie> vocabulary_;
  Stacks stacks_;            // of single states above an unknown context
  std::vector<Next> after_;  // by node of stacks_ and class of the byte, as far as known
  PairTable is_open_ended_;  // by node of stacks_ and 0
  // Lists of nodes of the trie: with a lexer, those whose byte comes next; without, those
  // whose children's bytes come next.
  ListNumbers<uint32_t> trie_nodes_;
  uint32_t whole_trie_;             // the list in front of all tokens
  PairTable partial_mask_numbers_;  // by list of trie nodes and start
  std::deque<PartialMask> partial_masks_;
  PairTable fragment_numbers_;  // by node of the trie and state after its byte
  std::deque<Fragment> fragments_;
  std::unordered_map<std::string, const engine::Mask*> masks_;  // by the numbers of their partial masks
  engine::MaskStore store_;
  std::unique_ptr<Summaries> summaries_;  // null if they are of no use
  BranchSet branches_;                    // of the present search
  size_t mask_bytes_ = 0;                 // of fragments, too
  bool is_full_ = false;                  // true if there is no room for more masks, partial ones included
  Loops loops_;                           // of states of the lexer, or of nodes of stacks_
  std::vector<uint32_t> row_;
  std::vector<uint8_t> is_start_;  // by node of the trie: 1 if a walk that is not over starts there
  uint64_t num_trie_steps_ = 0;
};

template <typename IsAllowed>
void Masks::add_by_walk(Reader& reader, const Configuration& config, engine::Budget& budget, IsAllowed is_allowed,
                        uint32_t* row) const {
  add_below(engine::VocabularyTrie::kRoot, reader, config, budget, is_allowed, row);
  for (uint32_t token = 0; token < vocabulary_->size() && network_.has_tokens(); ++token) {
    Configuration next = reader.after_token(config, token, budget);
    if (!next.is_dead() && is_allowed(next)) row[token >> 5] |= 1u << (token & 31);
  }
}

template <typename IsAllowed>
void Masks::add_below(uint32_t trie_node, Reader& reader, const Configuration& config, engine::Budget& budget,
                      IsAllowed is_allowed, uint32_t* row) const {
  std::vector<Configuration> configs(vocabulary_->max_depth() + 1);  // before each byte
  bool is_root = trie_node == engine::VocabularyTrie::kRoot;
  configs[is_root ? 0 : vocabulary_->nodes()[trie_node].depth + 1] = config;
  vocabulary_->visit_below(trie_node, [&](uint32_t node, uint8_t byte, uint32_t depth) {
    budget.spend(1);
    Configuration& next = configs[depth + 1] = reader.after(configs[depth], byte, budget);
    if (next.is_dead()) return false;
    uint32_t first = vocabulary_->first_token(node), end = vocabulary_->nodes()[node].tokens_end;
    if (first < end && is_allowed(next)) {
      for (uint32_t i = first; i < end; ++i) {
        uint32_t token = vocabulary_->tokens()[i];
        row[token >> 5] |= 1u << (token & 31);
      }
    }
    return true;
  });
}

}  // namespace structout::context_free
