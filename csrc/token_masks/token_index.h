// An automaton over the tokens of a vocabulary. Its states are those of an automaton over
// bytes; a token leads where its bytes lead.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "automata/automaton.h"
#include "token_masks/mask_store.h"
#include "token_masks/token_costs.h"
#include "token_masks/vocabulary.h"

namespace structout::engine {

// The transitions of all tokens as a table by state and class of token. Tokens of one
// class lead to the same state from every state. Tokens of class 0 are never allowed.
struct TokenClasses {
  std::vector<int32_t> class_of_token;
  std::vector<int32_t> next;  // [state][class], -1: not allowed
  uint32_t num_classes = 0;
};

// Threads may share it. A state's mask is computed on its first use, by a walk over the
// vocabulary's trie that stops at bytes the automaton refuses. Later uses copy it,
// unless the store of masks was full. States with equal masks share one.
class TokenIndex {
 public:
  TokenIndex(Automaton automaton, std::shared_ptr<const VocabularyTrie> vocabulary);

  const Automaton& automaton() const { return automaton_; }
  const VocabularyTrie& vocabulary() const { return *vocabulary_; }
  const std::shared_ptr<const VocabularyTrie>& shared_vocabulary() const { return vocabulary_; }
  uint32_t num_states() const { return automaton_.num_states(); }
  bool accepts(uint32_t state) const { return automaton_.accepts(state); }

  // True if some sequence of tokens leads from the state to an accepting one. The empty
  // sequence counts.
  bool is_live(uint32_t state) const { return is_live_[state] != 0; }

  // Returns kDead if the token is not allowed, or is no token.
  uint32_t next(uint32_t state, int64_t token) const {
    if (token < 0 || token >= vocabulary_->size()) return kDead;
    const uint8_t *byte = vocabulary_->begin(uint32_t(token)), *end = vocabulary_->end(uint32_t(token));
    if (byte == end) return kDead;
    for (; byte < end && state != kDead; ++byte) state = step(state, *byte);
    return state != kDead && is_live(state) ? state : kDead;
  }

  // Writes a mask of vocabulary().row_words() words, without stop tokens. Returns true
  // if it is empty.
  bool fill(uint32_t state, MaskRow& row) const;
  bool fill(uint32_t state, uint32_t* words) const {
    MaskRow row(words, vocabulary_->row_words());
    return fill(state, row);
  }
  bool has_mask(uint32_t state) const { return masks_[state].load(std::memory_order_acquire) != nullptr; }
  uint32_t num_masks() const { return store_.size(); }  // different ones, so far

  // The number of the state's mask among the different masks, in the order in which
  // they were first computed. Computes the mask on a miss. kDead if the store of masks
  // is full.
  uint32_t mask_slot(uint32_t state) const;

  // The bytes that must follow.
  std::string forced(uint32_t state) const;

  // The tokens from a state to an accepting one, and after each token: see TokenCosts. The
  // fewest, but in large automata those that spell a text with the fewest bytes. Null if
  // the cost is at most `max` after each token.
  uint32_t cost_to_end(uint32_t state) const { return costs()[state]; }
  std::shared_ptr<const TokenCosts> token_costs(uint32_t state, uint32_t max) const;

  // Computes all masks.
  void compute_masks() const;

  // Throws LimitError if the tables would take more than `max_bytes`.
  TokenClasses token_classes(uint64_t max_bytes) const;

  // The memory of this index; the vocabulary is shared and not included.
  size_t memory_bytes() const;

  std::string serialize() const;

  // Throws std::invalid_argument for other bytes and for another vocabulary.
  static std::shared_ptr<TokenIndex> deserialize(const std::string& bytes,
                                                 std::shared_ptr<const VocabularyTrie> vocabulary);

 private:
  uint32_t step(uint32_t state, uint8_t byte) const {
    uint32_t row = dense_row_[state];
    if (row != kDead) return dense_[row + class_of_byte_[byte]];
    for (const Edge* edge = automaton_.begin(state); edge < automaton_.end(state); ++edge) {
      if (byte <= edge->last) return byte >= edge->first ? edge->target : kDead;
    }
    return kDead;
  }

  // Calls visit(first, end, target) for the allowed tokens vocabulary.tokens()[first ... end].
  template <typename Visit>
  void walk(uint32_t state, Visit visit) const;

  const std::vector<uint32_t>& costs() const;
  std::vector<uint32_t> fewest_tokens() const;
  std::vector<uint32_t> tokens_of_shortest() const;
  void build_rows();
  void find_live_states();
  void compute_row(uint32_t state, uint32_t* row) const;

  Automaton automaton_;
  std::shared_ptr<const VocabularyTrie> vocabulary_;
  // States with many edges have a row of targets by class of byte.
  std::vector<uint32_t> dense_row_;
  std::vector<uint32_t> dense_;
  uint8_t class_of_byte_[256] = {};
  std::vector<uint8_t> is_live_;

  mutable std::vector<std::atomic<const Mask*>> masks_;
  mutable MaskStore store_;

  mutable std::once_flag has_costs_;
  mutable std::vector<uint32_t> costs_;  // by state
  mutable uint32_t most_cost_ = 0;       // of a live state
  mutable std::mutex mutex_;             // guards the members below
  mutable std::vector<std::shared_ptr<const TokenCosts>> token_costs_;
  mutable size_t token_costs_bytes_ = 0;
};

}  // namespace structout::engine
