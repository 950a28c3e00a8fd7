// The states of the machine: what they stand for, and their numbers.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "base/state_numbers.h"

namespace structout::json {

using State = uint32_t;
constexpr State kNoState = UINT32_MAX;

// A state has numbers of what the tables of the machine hold:
//   children  what is asked of a value: its goal, then formulas whose truth is tracked
//   texts     text states of a string or number (see json/texts.h), one for each of these
//   object    what is left to ask of an object
//   array     formulas on the rest of an array
//   spaces    the white space that has come (see json/whitespace.h)
struct TextEnd {};
struct BeforeValue {
  uint32_t children, spaces;
};
struct InLiteral {
  uint32_t literal, position, verdicts;
};
struct InString {
  uint32_t texts;
};
struct InNumber {
  uint32_t texts;
};
struct ObjectStart {
  uint32_t object, spaces;
};
struct BeforeKey {
  uint32_t object, spaces;
};
struct InKey {
  static constexpr uint32_t kNotFree = UINT32_MAX;

  uint32_t object;
  uint32_t begin, end;  // of the names, by spelling, that begin as the key does
  uint32_t length;      // bytes that have come, while there are such names
  uint32_t free;        // texts of free keys, or kNotFree

  bool may_be_named() const { return begin < end; }
  bool may_be_free() const { return free != kNotFree; }
};
struct AfterKey {
  uint32_t object, key, spaces;
};
struct WaitingForMember {  // below its value on the stack
  uint32_t object, key;
};
struct AfterMember {
  uint32_t object, spaces;
};
struct ArrayStart {
  uint32_t array, spaces;
};
struct WaitingForItem {
  uint32_t array;
};
struct AfterItem {
  uint32_t array, spaces;
};

using StateContents = std::variant<TextEnd, BeforeValue, InLiteral, InString, InNumber, ObjectStart, BeforeKey, InKey,
                                   AfterKey, WaitingForMember, AfterMember, ArrayStart, WaitingForItem, AfterItem>;

// The memory of a text that goes with a state, because keys and items must differ.
enum class MemoryKind : uint8_t {
  kNone,
  kKeys,        // an object: its free keys, and its named ones where they come in any order
  kInsideKey,   // the same, and the begin of this one
  kItems,       // an array: its items
  kInsideItem,  // waiting for an item
};

// Equal contents have one number.
class StateTable {
 public:
  // The number, and whether it is new.
  std::pair<State, bool> add(const StateContents& contents, MemoryKind memory) {
    auto is_equal = [&](State other) { return are_equal(contents_[other], contents); };
    auto store = [&] {
      engine::make_room(memories_);
      contents_.push_back(contents);
      memories_.push_back(memory);
    };
    return numbers_.find_or_add(hash_of(contents), is_equal, store);
  }

  size_t size() const { return contents_.size(); }

  // Valid until the next state is added.
  const StateContents& operator[](State state) const { return contents_[state]; }
  template <typename Contents>
  const Contents* find(State state) const {  // null if the state is of another kind
    return std::get_if<Contents>(&contents_[state]);
  }

  MemoryKind memory(State state) const { return memories_[state]; }

 private:
  template <typename Contents>
  static auto words_of(const Contents& contents) {
    if constexpr (std::is_empty_v<Contents>) {
      return std::array<uint32_t, 0>{};
    } else {
      static_assert(std::has_unique_object_representations_v<Contents>);
      std::array<uint32_t, sizeof(Contents) / sizeof(uint32_t)> words;
      std::memcpy(words.data(), &contents, sizeof contents);
      return words;
    }
  }

  static uint64_t hash_of(const StateContents& contents) {
    return std::visit(
        [&contents](const auto& state) {
          uint64_t hash = contents.index();
          for (uint32_t word : words_of(state)) hash = engine::mix(hash, word);
          return hash;
        },
        contents);
  }

  static bool are_equal(const StateContents& a, const StateContents& b) {
    if (a.index() != b.index()) return false;
    return std::visit(
        [&b](const auto& state) {
          using Contents = std::decay_t<decltype(state)>;
          return words_of(state) == words_of(*std::get_if<Contents>(&b));
        },
        a);
  }

  std::vector<StateContents> contents_;
  std::vector<MemoryKind> memories_;
  engine::StateNumbers numbers_;
};

}  // namespace structout::json
