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
#include "context_free/embedded_masks.h"
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

// The place of a text: what has a number, and what each text has for itself.
struct TextPlace {
  uint32_t state = kNone;   // of the first lexer place
  uint32_t num_tokens = 0;  // see LexerPlace
  std::shared_ptr<const OtherPlaces> others{};
  bool is_dead() const { return state == kNone; }
};

// Numbers for the places where texts stand. They are made when they are first needed, and
// stay as long as this does. Threads may share it, and wait for none where a mask is known,
// outside of embedded texts.
class GrammarStates {
 public:
  // `has_own`: whether embedded languages get states that no other text uses.
  GrammarStates(std::shared_ptr<SharedParts> parts, bool has_own);

  // The place of the empty text. Dead if no text can be finished.
  TextPlace start();

  // The place after bytes. Dead if they are not allowed.
  TextPlace after(const TextPlace& from, const uint8_t* begin, const uint8_t* end);

  // The place after a token: after its bytes, or where it is read by its id. `by_id`: only
  // the latter.
  TextPlace after_token(const TextPlace& from, uint32_t token, bool by_id);
  bool may_end(const TextPlace& text);

  // The bytes that must follow.
  std::string forced(const TextPlace& text);

  // The bytes of a shortest way to the end of the text: see EndSearch.
  std::optional<std::string> shortest_end(const TextPlace& text);

  // The stacks of a state: what stands on top of each, and the node below. Equal nodes are
  // equal sets of stacks.
  std::vector<Item> items(const TextPlace& text);

  // The number of a place. Inside embedded texts, of all places with one mask.
  uint32_t number_of(const TextPlace& text);

  // Fills the mask of the tokens that may follow, without stop tokens. Returns whether
  // there is one.
  bool fill(const TextPlace& text, engine::MaskRow& row);

  // The same by a walk over whole places, which uses no pieces and keeps nothing.
  std::vector<uint32_t> walked_row(const TextPlace& text);

  // Whether fill() is short.
  bool has_mask(const TextPlace& text);

  // Places of these for places of another object of the same grammar.
  std::vector<TextPlace> copied(GrammarStates& from, const std::vector<TextPlace>& places);

  // Takes over from another object of the same grammar how its places are finished, so that
  // texts that were finishable there are so here.
  void take_over_ends(GrammarStates& from, const std::vector<TextPlace>& places);

  uint32_t num_states();

  // Without the shared parts. These wait for no thread.
  size_t memory_bytes() const { return memory_bytes_; }
  size_t moved_bytes() const { return moved_bytes_; }  // of copied states

 private:
  friend class EmbeddedGrammarStates;  // holds them over several calls
  static constexpr size_t kMaxForcedBytes = 4'096;
  static constexpr size_t kMaxBytes = 64 << 20;
  static constexpr uint64_t kMaxStepsOfCall = 1 << 20;  // of the budget

  // Whether a text may end in a state.
  enum class MayEnd : uint8_t { kUnknown, kNo, kYes };

  struct State {
    LexerPlace place;
    std::atomic<const engine::Mask*> mask;  // null if unknown or not kept
    std::atomic<MayEnd> may_end;
  };

  // Holds the shared parts and the states for this thread.
  class Lock {
   public:
    explicit Lock(GrammarStates& states) : states_(states), lock_(states.parts_->mutex, states.parts_->budget) {
      states.parts_->budget.restart(kMaxStepsOfCall);
    }
    ~Lock() {
      states_.embedded_.release();
      states_.memory_bytes_ = states_.size_in_bytes();
    }

   private:
    GrammarStates& states_;
    engine::AllowanceLock lock_;
  };

  engine::Budget& budget() { return parts_->budget; }
  size_t size_in_bytes() const;
  void check_room() const;
  uint32_t number_of(const LexerPlace& place);
  void take_over_ends(GrammarStates& from, const std::vector<TextPlace>& places, PairTable& copies);
  Place place_of(const TextPlace& text) const {
    Place place = {states_[text.state].place, text.others};
    place.num_tokens = text.num_tokens;
    return place;
  }
  // The place without the embedded texts after whose ends the text cannot be finished.
  Place with_finishable_runs(const Place& place);
  // The place of a text at the end of a token. Dead if the text cannot be finished.
  TextPlace finishable(Place place);
  bool has_end(const Place& place);
  const engine::Mask* mask_of(uint32_t state);
  const engine::Mask* held_mask_of(uint32_t state);  // while they are held, as the next one
  std::string held_forced(Place place);
  void fill_by_walk(const Place& place, uint32_t* row);

  const std::shared_ptr<SharedParts> parts_;
  EmbeddedUse embedded_;
  Reader reader_;
  EmbeddedMasks embedded_masks_;
  EndSearch end_search_;
  engine::StableVector<State> states_;
  PairTable numbers_;  // by node and state of the lexer
  std::atomic<size_t> memory_bytes_{0}, moved_bytes_{0};
};

}  // namespace structout::context_free
