// A grammar over the tokens of a vocabulary.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "context_free/grammar_states.h"

namespace structout::context_free {

// Manages the states (GrammarStates) that texts of a grammar share. States only grow. Once
// they are too large, new texts begin with new states, present ones move to them after
// their next step, and the old states are freed with the last text that has not moved. So a
// grammar serves any number of texts, of any length.
//
// Threads may share it.
class GrammarIndex {
 public:
  static constexpr size_t kMaxGrowth = 8 << 20;

  // `max_growth`: bytes that texts may add to states before they move to new ones.
  //
  // Throws std::invalid_argument if an embedded language is over another vocabulary.
  GrammarIndex(std::shared_ptr<const Network> network, const engine::Limits& limits,
               std::shared_ptr<const engine::VocabularyTrie> vocabulary, size_t max_growth = kMaxGrowth);

  const std::shared_ptr<const engine::VocabularyTrie>& shared_vocabulary() const { return parts_->vocabulary; }
  const SharedParts& parts() const { return *parts_; }

  // Returns the present states, after replacing them if they are outgrown.
  std::shared_ptr<GrammarStates> states();

  // Returns new states that no other text uses, with new states of embedded languages as
  // well.
  std::shared_ptr<GrammarStates> own_states() const { return std::make_shared<GrammarStates>(parts_, true); }

  // True if texts on these states should move to others. Bytes of places that moved here
  // raise the threshold by twice their size, so that a move pays off before the next one.
  bool is_outgrown(const GrammarStates& states) const {
    return states.memory_bytes() > max_growth_ + 2 * states.moved_bytes();
  }

  // Replaces the places of a text by copies on the present states, and returns these
  // states.
  std::shared_ptr<GrammarStates> moved(GrammarStates& from, std::vector<TextPlace>& places);

  // True if no text can be finished: then even the place of the empty text is dead.
  bool is_empty() { return states()->start().is_dead(); }

  // Returns the bytes of all states in use, of embedded languages, of the network, and of
  // the lexer and the masks that states share.
  size_t memory_bytes();

 private:
  const std::shared_ptr<SharedParts> parts_;
  const size_t max_growth_;
  std::mutex mutex_;  // guards the members below
  std::shared_ptr<GrammarStates> states_;
  std::vector<std::weak_ptr<GrammarStates>> earlier_;
};

}  // namespace structout::context_free
