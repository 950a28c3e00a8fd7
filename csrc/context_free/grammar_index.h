// A grammar over the tokens of a vocabulary.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "context_free/grammar_states.h"

namespace structout::context_free {

// Gives texts the states to use. Texts share them; once they have grown much, all go on
// with new ones, and old ones are freed with the last text that has not moved. So a
// grammar serves any number of texts, of any length.
//
// Threads may share it.
class GrammarIndex {
 public:
  static constexpr size_t kMaxGrowth = 8 << 20;

  // `max_growth`: bytes of states that texts make before they move to new ones.
  // Throws std::invalid_argument if an embedded language is over another vocabulary.
  GrammarIndex(std::shared_ptr<const Network> network, const engine::Limits& limits,
               std::shared_ptr<const engine::VocabularyTrie> vocabulary, size_t max_growth = kMaxGrowth);

  const std::shared_ptr<const engine::VocabularyTrie>& shared_vocabulary() const { return parts_->vocabulary; }
  const SharedParts& parts() const { return *parts_; }

  // The states for texts to use now.
  std::shared_ptr<GrammarStates> states();

  // States that no other text uses, those of embedded languages included.
  std::shared_ptr<GrammarStates> own_states() const { return std::make_shared<GrammarStates>(parts_, true); }

  // Whether texts on these states should move on to others. What they take along counts
  // less, so that moving pays.
  bool is_outgrown(const GrammarStates& states) const {
    return states.memory_bytes() > max_growth_ + 2 * states.moved_bytes();
  }

  // Moves places of a text, and returns the states to use.
  std::shared_ptr<GrammarStates> moved(GrammarStates& from, std::vector<TextPlace>& places);

  // Whether no text can be finished.
  bool is_empty() { return states()->start().is_dead(); }

  // What the states in use, including those of embedded languages, the pieces and the
  // masks take.
  size_t memory_bytes();

 private:
  const std::shared_ptr<SharedParts> parts_;
  const size_t max_growth_;
  std::mutex mutex_;  // guards what follows
  std::shared_ptr<GrammarStates> states_;
  std::vector<std::weak_ptr<GrammarStates>> earlier_;
};

}  // namespace structout::context_free
