// The states and masks that texts of a grammar share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/allowance_lock.h"
#include "base/stable_vector.h"
#include "context_free/liveness.h"
#include "context_free/masks.h"
#include "context_free/network.h"
#include "context_free/reader.h"
#include "masks/vocabulary.h"

namespace structout::context_free {

// What all texts of a grammar share for good: the lexer's states, and the pieces of masks,
// of which the grammar bounds the number.
struct SharedParts {
  SharedParts(std::shared_ptr<const Network> network, const engine::Limits& limits,
              std::shared_ptr<const engine::VocabularyTrie> vocabulary);

  const std::shared_ptr<const Network> network;
  const std::shared_ptr<const engine::VocabularyTrie> vocabulary;
  std::mutex mutex;  // guards what follows, and the states of all texts
  engine::Budget budget;
  Lexer lexer;
  SureWays sure_ways;
  Masks masks;
};

// Numbers for the places where texts stand. They are made when they are first needed, and
// stay as long as this does. Threads may share it, and wait for none where a mask is known.
class GrammarStates {
 public:
  explicit GrammarStates(std::shared_ptr<SharedParts> parts);

  // The state of the empty text, or kNone if no text can be finished.
  uint32_t start();

  // The state after bytes, or kNone if they are not allowed.
  uint32_t after(uint32_t state, const uint8_t* begin, const uint8_t* end);
  bool may_end(uint32_t state);

  // The bytes that must follow.
  std::string forced(uint32_t state);

  // The bytes of a shortest way to the end of the text. Nothing if the search gives up.
  std::optional<std::string> shortest_end(uint32_t state);

  // The stacks of a state: what stands on top of each, and the node below. Equal nodes are
  // equal sets of stacks.
  std::vector<Item> items(uint32_t state);

  // Fills the mask of the tokens that may follow, without stop tokens. Returns whether
  // there is one.
  bool fill(uint32_t state, uint32_t* row);

  // The same by a walk over whole stacks, which uses no pieces and keeps nothing.
  std::vector<uint32_t> walked_row(uint32_t state);

  // Null if it is not kept.
  const engine::Mask* mask(uint32_t state);
  bool has_mask(uint32_t state) const { return states_[state].mask != nullptr; }

  // States of these for states of another object of the same grammar.
  std::vector<uint32_t> copied(GrammarStates& from, const std::vector<uint32_t>& states);

  uint32_t num_states();

  // Without the shared parts. These wait for no thread.
  size_t memory_bytes() const { return memory_bytes_; }
  size_t moved_bytes() const { return moved_bytes_; }  // of copied states

 private:
  static constexpr size_t kMaxForcedBytes = 4'096;
  static constexpr size_t kMaxBytes = 64 << 20;
  static constexpr uint64_t kMaxStepsOfCall = 1 << 20;  // of the budget

  // Whether a text may end in a state.
  enum class MayEnd : uint8_t { kUnknown, kNo, kYes };

  struct State {
    Place place;
    std::atomic<const engine::Mask*> mask;  // null if unknown or not kept
    std::atomic<MayEnd> may_end;
  };

  // Holds the shared parts and the states for this thread.
  class Lock {
   public:
    explicit Lock(GrammarStates& states) : states_(states), lock_(states.parts_->mutex, states.parts_->budget) {
      states.parts_->budget.restart(kMaxStepsOfCall);
    }
    ~Lock() { states_.memory_bytes_ = states_.size_in_bytes(); }

   private:
    GrammarStates& states_;
    engine::AllowanceLock lock_;
  };

  engine::Budget& budget() { return parts_->budget; }
  size_t size_in_bytes() const;
  uint32_t number_of(Place place);
  bool has_end(Place place) { return end_search_.has_end(reader_, place, budget()); }
  void fill_by_walk(Place place, uint32_t* row);

  const std::shared_ptr<SharedParts> parts_;
  Reader reader_;
  EndSearch end_search_;
  engine::StableVector<State> states_;
  PairTable numbers_;  // by node and state of the lexer
  std::atomic<size_t> memory_bytes_{0}, moved_bytes_{0};
};

}  // namespace structout::context_free
