// What bytes do to the stack of the machine, as far as it is known.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/room.h"
#include "json/states.h"

namespace structout::json {

// What a byte does to the top of the stack.
struct Action {
  enum Kind : uint8_t {
    kFail,
    kReplace,    // the top by `state`
    kPush,       // the top is replaced by `below`, with `state` above it
    kPop,        // the value is complete with verdicts number `state`
    kPopBefore,  // the same, and the byte is still to be read
  };
  Kind kind = kFail;
  State state = kNoState;
  State below = kNoState;
  bool operator==(const Action& other) const {
    return kind == other.kind && state == other.state && below == other.below;
  }
};

// The actions of each state, by byte, from when a byte is first read there.
class ActionTable {
 public:
  void make_room_for_state() { engine::make_room(rows_); }
  void add_state() { rows_.emplace_back(); }

  // Null if it is not known.
  const Action* find(State state, uint8_t byte) const {
    const std::unique_ptr<Row>& row = rows_[state];
    uint8_t number = row == nullptr ? kUnknown : row->numbers[byte];
    return number == kUnknown ? nullptr : &row->actions[number];
  }

  // The action of the bytes first ... last of a state.
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

  // No text has some of the bytes, so the numbers of actions fit.
  struct Row {
    uint8_t numbers[256] = {};
    std::vector<Action> actions = {{}};  // number 0: unknown
  };

  std::vector<std::unique_ptr<Row>> rows_;
  size_t bytes_ = 0;
};

}  // namespace structout::json
