// Walks over the vocabulary's trie, for partial masks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "grammar/token_masks/masks.h"

namespace structout::context_free {

// Computes a partial mask by walks over the trie from one start.
class Masks::Walk {
 public:
  Walk(Masks& masks, Reader& reader, engine::Budget& budget)
      : masks_(masks), reader_(reader), vocabulary_(*masks.vocabulary_), budget_(budget) {
    states_.resize(vocabulary_.max_depth() + 2);
  }

  PartialMask walk(uint32_t trie_nodes, uint32_t start);

 private:
  // Computes the fragment below one node.
  Fragment walk_below(uint32_t node, uint32_t state);

  // Adds the fragment below a node, if that has at least kMinNodesOfFragment nodes.
  // Fragments are cached, since other walks come to the same node in the same state.
  // Returns false if it adds nothing.
  bool add_fragment(uint32_t node, uint32_t state);
  void add_row(const std::vector<uint32_t>& row);

  static constexpr uint32_t kTrieStepsPerUnit = 8;  // of a budget: a step is short
  static constexpr uint32_t kMinNodesOfFragment = 128;
  static constexpr uint32_t kWordsPerListedToken = 4;  // setting a bit takes as long as copying some words

  void count_step();
  TokenSet set_of(const std::vector<uint32_t>& tokens) const;

  // The set of all tokens that the walk has added.
  TokenSet token_set() const;
  void add_tokens(uint32_t node, std::vector<uint32_t>& tokens);
  void add_token_ids(uint32_t state);

  // Adds the tokens below a node and returns true, if their bytes lead back to one state,
  // or nowhere: then no walk below the node is needed.
  bool add_loop(uint32_t node, uint32_t state);
  void add_those_like(engine::ByteGroups groups, uint32_t skipped, uint32_t node, std::vector<uint32_t>& to);

  // True if the bytes on the path to a node, without the first `skipped` of them, belong to
  // `groups` and lead to the given state of UTF-8.
  bool is_path_of(engine::ByteGroups groups, uint32_t skipped, uint32_t node, uint8_t utf8_state) const;

  // True if tokens that end inside a character can be finished just as those at the loop's
  // own state. `is_sure`: true if that state is completable; then the inner state must be
  // completable, too. Otherwise it must lead nowhere but to the end of the character.
  bool leads_like(uint32_t inside_character, bool is_sure);

  // Walks from the begin of an embedded text.
  void walk_embedded(const std::vector<uint32_t>& nodes, uint32_t language);

  // Walks one lexeme from each of the nodes. No node is below another, since the
  // configurations where a lexeme ends never are.
  void walk_lexemes(const std::vector<uint32_t>& nodes, uint32_t start);

  // Reads the byte of a node. Returns true if the walk has to continue below the node.
  bool read_lexeme(uint32_t node, uint8_t byte, uint32_t depth);

  // Walks the rules, and continues after embedded texts that begin and end inside tokens.
  void walk_all_rules(uint32_t trie_nodes, GssNode start);
  void add_all_tokens(const PartialMask& partial);
  void begin_embedded(GssNode node, const std::vector<uint32_t>& trie_nodes);
  void list_continuations();  // from ends_

  // Walks the rule from each of the nodes. A rule may end at nodes below each other, so the
  // walk below one may pass another. From there it continues with the stacks of both.
  void walk_rules(const std::vector<uint32_t>& nodes, GssNode start);

  Masks& masks_;
  Reader& reader_;
  const engine::VocabularyTrie& vocabulary_;
  engine::Budget& budget_;
  std::vector<uint32_t> states_;  // of the lexer, or nodes, before the byte at each depth
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> row_;                                   // of further tokens, if there are any
  std::array<std::vector<uint32_t>, kMaxUnknownsOfMask> ends_;  // in front of other bytes, by unknown contexts
  // The nodes where embedded texts begin, by their languages and the stacks below.
  std::map<std::pair<uint32_t, GssNode>, std::vector<uint32_t>> embedded_;
  std::map<uint32_t, std::vector<uint32_t>> continuations_;  // by label
  std::map<uint32_t, std::vector<uint32_t>> guarded_;        // tokens by the state of the lexer
};

}  // namespace structout::context_free
