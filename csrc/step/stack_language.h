// A language whose machine may go into stack tables (step/stack_tables.h).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/stack_tables.h"
#include "masks/embedded.h"
#include "masks/vocabulary.h"

namespace structout::engine {

// A condition on the names that have come in a value, as sets of names by number.
struct StackGuard {
  uint64_t required = 0;
  uint64_t candidates = 0;
  int32_t max_keys = -1;  // how many may follow; -1: any number
  bool closes = false;
  bool allows_free = false;
};

// What a byte does to the top of the stack.
struct StackAction {
  enum Kind : uint8_t { kFail, kReplace, kPush, kPop, kPopBefore, kAsk };
  Kind kind = kFail;
  uint32_t state = 0;  // the next state, or the number of the verdicts
  uint32_t below = 0;
  bool has_guard = false;
  StackGuard guard{};
  int32_t name = -1;  // that is complete with the byte

  bool operator==(const StackAction& other) const {
    return kind == other.kind && state == other.state && below == other.below && !has_guard && !other.has_guard &&
           name == other.name;
  }
};

// A text by its states, and the names that have come around each. The top is the last.
struct StackPlace {
  struct Frame {
    uint32_t state;
    uint64_t names;
  };
  std::vector<Frame> frames;
};

// The mask of a place, and what it depends on.
struct StackMask {
  struct Condition {
    int32_t before;  // another condition, or -1
    uint32_t frame;  // whose names the guard asks, 0 for the top
    StackGuard guard;
  };
  uint32_t state = 0;  // one with the same masks as the top
  uint32_t num_frames = 1;
  bool is_asked = false;  // it depends on what the place does not tell
  std::vector<Condition> conditions;
  std::vector<uint32_t> frames_with_names;  // whose names it depends on, in the place of conditions
};

// States are numbers. They are made when they are first needed; what makes them may throw
// a LimitError.
class StackLanguage {
 public:
  static constexpr uint32_t kBottom = UINT32_MAX;  // in the place of a state that waits
  enum : int64_t { kRefused = kResumeRefused, kAsked = kResumeAsked };

  virtual ~StackLanguage() = default;

  virtual const VocabularyTrie& vocabulary() const = 0;

  // The state of the empty text, and whether it is a value above the bottom of a stack.
  virtual uint32_t start() = 0;
  virtual bool has_stack() const = 0;

  virtual bool accepts(uint32_t state) = 0;  // above the bottom, or after it
  virtual bool is_below_bottom(uint32_t state) = 0;
  virtual bool keeps_names(uint32_t state) = 0;
  virtual bool is_live(uint32_t state) = 0;  // whether a token may end there

  // One for each byte.
  virtual void list_actions(uint32_t state, StackAction* actions) = 0;

  // The tokens that the state reads by their ids, at most kMaxPairs, each with the state
  // that follows, kRefused or kAsked. Others are read byte by byte.
  virtual bool reads_tokens(uint32_t) { return false; }
  virtual std::vector<std::pair<uint32_t, int64_t>> list_tokens(uint32_t) { return {}; }

  // The state that follows a waiting one, kRefused or kAsked.
  virtual int64_t resume(uint32_t waiting, uint32_t verdicts) = 0;

  // Fills the row of a place, without stop tokens.
  virtual StackMask fill(const StackPlace& place, uint32_t* row) = 0;

  // A text that the engine itself follows.
  class Text {
   public:
    virtual ~Text() = default;
    virtual std::unique_ptr<Text> copy() const = 0;
    // False if the token is not allowed; the text stays where it was then.
    virtual bool read(uint32_t token) = 0;
    virtual bool is_complete() = 0;
    virtual void fill(uint32_t* row) = 0;
    // False if tables cannot follow it, because more than its place matters.
    virtual bool find_place(StackPlace& place) = 0;
  };
  virtual std::unique_ptr<Text> text() = 0;
};

// One whose texts may be parts of others.
class EmbeddedStackLanguage : public StackLanguage {
 public:
  // Whether a text tells by itself where it ends. A number does not.
  virtual bool is_delimited(const EmbeddedPosition& position) = 0;

  // Writes the place of a position. False if tables cannot follow it.
  virtual bool find_place(const EmbeddedPosition& position, StackPlace& place) = 0;
  virtual PositionPtr position(const StackPlace& place) = 0;

  // How many frames masks of a state look at, as far as that is known: see StackMask.
  virtual uint32_t num_mask_frames(uint32_t mask_state) = 0;

  // Whether a key or an item has begun whose text is remembered. The position of such a
  // place lacks that text.
  virtual bool has_remembered_text(const StackPlace& place) = 0;
};

}  // namespace structout::engine
