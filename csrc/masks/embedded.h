// Languages with a machine of their own, as parts of others.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "masks/mask_store.h"
#include "masks/vocabulary.h"

namespace structout::engine {

// Where a text stands in an embedded language, after its first byte.
class EmbeddedPosition {
 public:
  virtual ~EmbeddedPosition() = default;
};

using PositionPtr = std::shared_ptr<const EmbeddedPosition>;

using ByteSet = std::bitset<256>;

// What tokens do from a position.
struct EmbeddedView {
  static constexpr uint32_t kNoEntry = UINT32_MAX;

  // The tokens all of whose bytes belong to the embedded text. Null if they depend on what
  // the position remembers, or are not kept.
  const Mask* mask = nullptr;

  // Positions of one entry have equal masks and, in front of the same bytes, `exits`.
  // kNoEntry if the entry is not kept.
  uint32_t entry = kNoEntry;

  // Nodes of the vocabulary's trie after which the text may end inside a token. Those
  // lists count whose bits are set.
  std::shared_ptr<const std::vector<std::vector<uint32_t>>> exits;
  uint64_t counting_exits = 0;

  // More of these nodes, which depend on what the position remembers.
  std::vector<uint32_t> own_exits;
};

// The states and masks that texts of an embedded language share. A thread must hold the
// states in all calls but those of the numbers, which must not.
//
// Exceptions leave positions as they were.
class EmbeddedStates {
 public:
  virtual ~EmbeddedStates() = default;

  // Holds the states for this thread until release(), and bounds the work until then.
  virtual void hold() = 0;
  virtual void release() noexcept = 0;

  virtual PositionPtr start() = 0;

  // Reads bytes up to the first after which the text may end. `at` moves past those
  // that were read. Null if one of them is not allowed.
  virtual PositionPtr after(const EmbeddedPosition& position, const uint8_t*& at, const uint8_t* end) = 0;

  virtual bool may_end(const EmbeddedPosition& position) = 0;
  virtual bool may_go_on(const EmbeddedPosition& position) = 0;  // where the text may end

  // Whether the text can be completed.
  virtual bool has_end(const EmbeddedPosition& position) = 0;

  // False if positions differ, or if it takes long to tell.
  virtual bool are_equal(const EmbeddedPosition& a, const EmbeddedPosition& b) = 0;

  // `followers`: the bytes that may follow the text. Exits without one of them below may
  // be left out.
  virtual EmbeddedView view(const EmbeddedPosition& position, const ByteSet& followers) = 0;

  // The same if it takes no work.
  virtual std::optional<EmbeddedView> known_view(const EmbeddedPosition& position, const ByteSet& followers) = 0;

  // Fills a row with the tokens all of whose bytes belong to the embedded text.
  virtual void fill(const EmbeddedPosition& position, uint32_t* row) = 0;
  virtual void expand(const Mask& mask, MaskRow& row) = 0;

  // The bytes that must follow, where the text may not end.
  virtual std::string forced(const EmbeddedPosition& position) = 0;

  // Bytes that complete the text, the fewest if they are found quickly. Adds the steps of
  // a Budget that this takes to `work`.
  virtual std::optional<std::string> short_end(const EmbeddedPosition& position, uint64_t& work) = 0;

  // A unique_number() of these states.
  virtual uint32_t number() const = 0;
};

// A language whose texts are not empty, over the tokens of a vocabulary.
class EmbeddedLanguage {
 public:
  virtual ~EmbeddedLanguage() = default;
  virtual const VocabularyTrie& embedded_vocabulary() const = 0;
  virtual const ByteSet& first_bytes() const = 0;
  virtual size_t memory_bytes() = 0;  // of all states in use

  // The states for new texts to use now.
  virtual std::shared_ptr<EmbeddedStates> embedded_states() = 0;

  // States that no other text has used.
  virtual std::shared_ptr<EmbeddedStates> new_embedded_states() = 0;
};

}  // namespace structout::engine
