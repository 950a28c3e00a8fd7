// Walks over the vocabulary's trie, for pieces of masks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "context_free/masks.h"

namespace structout::context_free {

// Walks over the trie from one start.
class Masks::Walk {
 public:
  Walk(Masks& masks, Reader& reader, engine::Budget& budget)
      : masks_(masks), reader_(reader), vocabulary_(*masks.vocabulary_), budget_(budget) {
    states_.resize(vocabulary_.max_depth() + 2);
  }

  Piece walk(uint32_t trie_nodes, uint32_t start);

 private:
  // What the tokens below one node do.
  Part walk_below(uint32_t node, uint32_t state);

  // Adds what the tokens below a node do, if they are so many that it is kept: other
  // walks come to the same node in the same state.
  bool add_part(uint32_t node, uint32_t state);
  void add_row(const std::vector<uint32_t>& row);

  static constexpr uint32_t kTrieStepsPerUnit = 8;  // of a budget: a step is short
  static constexpr uint32_t kMinNodesOfPart = 128;
  static constexpr uint32_t kWordsPerListedToken = 4;  // setting a bit takes as long as copying some words

  void count_step();
  TokenSet set_of(const std::vector<uint32_t>& tokens) const;

  // All that were added.
  TokenSet token_set() const;
  void add_tokens(uint32_t node, std::vector<uint32_t>& tokens);
  void add_token_ids(uint32_t state);

  // Adds the tokens below a node if they need not be read byte by byte: where their bytes
  // lead back to one state, or nowhere.
  bool add_loop(uint32_t node, uint32_t state);
  void add_those_like(engine::ByteGroups groups, uint32_t skipped, uint32_t node, std::vector<uint32_t>& to);

  // Whether the bytes on the way to a node, after so many, are of some groups, and lead to a
  // state of UTF-8.
  bool is_way_of(engine::ByteGroups groups, uint32_t skipped, uint32_t node, uint8_t utf8_state) const;

  // Whether a state of the lexer inside of a character is safe, or leads nowhere but to the
  // character's end.
  bool leads_like(uint32_t inside_character, bool is_sure);

  // From the begin of an embedded text.
  void walk_embedded(const std::vector<uint32_t>& nodes, uint32_t language);

  // The places where a lexeme ends are never below each other, so neither are the nodes.
  void walk_lexemes(const std::vector<uint32_t>& nodes, uint32_t start);

  // Returns whether the lexeme may go on below the node.
  bool read_lexeme(uint32_t node, uint8_t byte, uint32_t depth);

  // Goes on after the embedded texts that begin and end on the way.
  void walk_all_rules(uint32_t trie_nodes, Node start);
  void add_all_tokens(const Piece& piece);
  void begin_embedded(Node node, const std::vector<uint32_t>& trie_nodes);
  void list_exits();  // from ends_

  // A rule may end at nodes below each other, so the walk below one may pass another. It
  // goes on from both then.
  void walk_rules(const std::vector<uint32_t>& nodes, Node start);

  Masks& masks_;
  Reader& reader_;
  const engine::VocabularyTrie& vocabulary_;
  engine::Budget& budget_;
  std::vector<uint32_t> states_;  // of the lexer, or nodes, before the byte at each depth
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> row_;                                 // of further tokens, if there are any
  std::array<std::vector<uint32_t>, kMaxHolesOfPiece> ends_;  // in front of other bytes, by holes
  // Where embedded texts begin, by their languages and the stacks below.
  std::map<std::pair<uint32_t, Node>, std::vector<uint32_t>> embedded_;
  std::map<uint32_t, std::vector<uint32_t>> exits_;    // by label
  std::map<uint32_t, std::vector<uint32_t>> guarded_;  // tokens by the state of the lexer
};

}  // namespace structout::context_free
