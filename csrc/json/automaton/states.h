// States of the automaton: their contents, and the table that numbers them.
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

// A state is a few numbers of entries in the tables of the automaton:
//   value_formulas  a list: a value's required formula, then its tracked formulas
//   texts           text states of a string or number (see json/scalars/texts.h), one for each of these
//   object          an object after some keys (see json/automaton/objects.h): the obligations left
//   array           formulas on the rest of an array
//   spaces          the state of the whitespace that has come (see json/automaton/whitespace.h)
struct TextEnd {};
struct BeforeValue {
  uint32_t value_formulas, spaces;
};
struct InLiteral {
  uint32_t literal, position, truth_values;
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
// A key is a named one if the schema has its name, else a free one: under {"properties":
// {"id": {}}}, "id" is named and "ie" is free. Until its bytes decide, a key may become
// either.
struct InKey {
  static constexpr uint32_t kNotFree = UINT32_MAX;

  uint32_t object;
  uint32_t begin, end;  // the range of names, sorted by spelling, that start with the key so far
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

// The kind of registers that a configuration needs beside a state, because keys and items
// must differ from earlier ones.
enum class RegisterKind : uint8_t {
  kNone,
  kKeys,        // an object: its free keys, and its named ones where they come in any order
  kInsideKey,   // as kKeys, and the begin of this key
  kItems,       // an array: its items
  kInsideItem,  // waiting for an item
};

// Equal contents get one number (hash-consing), so configurations compare states by number.
class StateTable {
 public:
  // Returns the number of the contents, and true if it is new.
  std::pair<State, bool> add(const StateContents& contents, RegisterKind registers) {
    auto is_equal = [&](State other) { return are_equal(contents_[other], contents); };
    auto store = [&] {
      engine::make_room(register_kinds_);
      contents_.push_back(contents);
      register_kinds_.push_back(registers);
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

  RegisterKind register_kind(State state) const { return register_kinds_[state]; }

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
  std::vector<RegisterKind> register_kinds_;
  engine::StateNumbers numbers_;
};

}  // namespace structout::json
