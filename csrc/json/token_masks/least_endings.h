// The bytes with which texts of a schema are completed soonest.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json/automaton/configuration.h"
#include "token_masks/endings.h"

namespace structout::json {

// Each state has a next byte, and with those of the states that follow it completes its
// value with the fewest bytes. So the ending of a configuration consists of those of the
// states on its stack, and after one of its bytes the rest of it is the ending.
class LeastEndings {
 public:
  static constexpr uint32_t kManyBytes = 1 << 12;  // where no ending is known

  // The keys of an object that its ending may not repeat.
  struct Keys {
    PastKeys seen = {};
    bool has_free = false;  // a free key has come: endings have no other one
  };

  LeastEndings(SchemaAutomaton& automaton, const engine::VocabularyTrie& vocabulary)
      : automaton_(automaton), endings_(vocabulary) {}

  // The ending of a stack, the top first; null if the text is complete. Returns false if none
  // is known.
  bool find(const std::vector<std::pair<State, Keys>>& stack, const engine::Ending*& ending) {
    return find(stack, stack[0].first, 0, ending);
  }

  // The same after the value on top, given its truth values: an ending of the rest of the stack.
  bool find_after(const std::vector<std::pair<State, Keys>>& stack, uint32_t truth_values,
                  const engine::Ending*& ending) {
    return stack.size() == 1 ? (ending = nullptr, true)
                             : find(stack, automaton_.resume(stack[1].first, truth_values), 1, ending);
  }

  // The ending of these bytes.
  const engine::Ending* of(const std::string& bytes) { return endings_.add(bytes, nullptr); }

  // The most bytes that complete a value on top of the stack, from any of the states so far.
  uint32_t most_bytes();

  const engine::Endings& endings() const { return endings_; }
  size_t memory_bytes() const { return endings_.memory_bytes() + rests_.size() * kBytesPerRest; }

 private:
  // What completes a value, and its truth values then.
  struct Rest {
    std::string bytes;
    uint32_t truth_values = 0;
  };
  struct Entry {
    std::unique_ptr<const Rest> rest;
    bool is_known = false;
    size_t depth = 0;  // of the search that has come here; 0: none
  };
  using Candidates = std::vector<std::pair<uint8_t, size_t>>;  // bytes, with the fewest bytes from each on
  static constexpr size_t kMaxBytes = 4'096, kMaxDepth = 2'000;
  static constexpr size_t kBytesPerRest = 160;  // with its key, roughly

  // From the state of a frame of the stack on.
  bool find(const std::vector<std::pair<State, Keys>>& stack, State state, size_t frame, const engine::Ending*& ending);
  const Rest* rest(State state, const Keys& keys);  // null if none is known
  std::unique_ptr<const Rest> computed(State state, const Keys& keys);
  std::unique_ptr<const Rest> with_byte(State state, const Keys& keys, uint8_t byte, size_t max_bytes);
  Candidates candidates(State state, const Keys& keys);
  void add_key_bytes(const InKey& key, const Keys& keys, Candidates& found);
  bool may_read(State state, const PastKeys& seen, uint8_t byte) {
    Action action = automaton_.action(state, byte);
    return action.kind != Action::kFail && automaton_.holds(automaton_.guard(state, byte, action), seen);
  }

  SchemaAutomaton& automaton_;
  engine::Endings endings_;
  std::unordered_map<std::string, Entry> rests_;
  std::vector<const Rest*> of_stack_;  // of find()
  State num_bounded_ = 0;              // the states that most_bytes() has looked at
  uint32_t most_bytes_ = 0;
  size_t depth_ = 0, lowest_assumed_ = SIZE_MAX;
};

}  // namespace structout::json
