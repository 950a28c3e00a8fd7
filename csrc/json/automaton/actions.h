// The transition table of the JSON automaton: the actions of bytes on its stack, filled as
// bytes are first read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/room.h"
#include "json/automaton/states.h"

namespace structout::json {

// The effect of one byte on the top of the stack. For example, a comma in an array pushes
// the state before the next value above one that waits for the item.
struct Action {
  enum Kind : uint8_t {
    kFail,
    kReplace,    // the top becomes `state`
    kPush,       // the top becomes `below`, with `state` above it
    kPop,        // the value is complete with truth values number `state`
    kPopBefore,  // like kPop, and the byte belongs to the state below: it ends a number
  };
  Kind kind = kFail;
  State state = kNoState;
  State below = kNoState;
  bool operator==(const Action& other) const {
    return kind == other.kind && state == other.state && below == other.below;
  }
};

// The known actions of each state, by byte. A hit costs two array lookups; a miss costs
// SchemaAutomaton::new_action(), which adds the action for all bytes around that do the
// same.
class ActionTable {
 public:
  void make_room_for_state() { engine::make_room(rows_); }
  void add_state() { rows_.emplace_back(); }

  // Null if the action is not known yet.
  const Action* find(State state, uint8_t byte) const {
    const std::unique_ptr<Row>& row = rows_[state];
    uint8_t number = row == nullptr ? kUnknown : row->numbers[byte];
    return number == kUnknown ? nullptr : &row->actions[number];
  }

  // Sets the action of the bytes first ... last of a state.
  void add(State state, uint8_t first, uint8_t last, const Action& action) {
    std::unique_ptr<Row>& row = rows_[state];
    if (row == nullptr) {
      row = std::make_unique<Row>();
      bytes_ += sizeof(Row);
    }
    auto found = std::find(row->actions.begin() + 1, row->actions.end(), action);
    auto number = uint8_t(found - row->actions.begin());
    if (found == row->actions.end()) {
      row->actions.push_back(action);
      bytes_ += sizeof(Action);
    }
    std::fill(row->numbers + first, row->numbers + last + 1, number);
  }

  size_t memory_bytes() const { return bytes_; }

 private:
  static constexpr uint8_t kUnknown = 0;

  // 0xFE and 0xFF occur in no UTF-8 text and share one action, so a row has at most 255
  // different actions and their numbers fit into a byte.
  struct Row {
    uint8_t numbers[256] = {};
    std::vector<Action> actions = {{}};  // number 0: unknown
  };

  std::vector<std::unique_ptr<Row>> rows_;
  size_t bytes_ = 0;
};

}  // namespace structout::json
