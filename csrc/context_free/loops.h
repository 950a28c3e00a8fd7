// States that many bytes lead back to, as those inside of strings, comments and names.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/utf8.h"
#include "masks/bytes_below.h"

namespace structout::context_free {

// What leads from a state back to it.
struct Loop {
  engine::ByteGroups groups = 0;  // all bytes of them do; those above ASCII as whole characters

  // Whether all texts below a node of the trie stay in the state. A last character that is
  // cut may be on the way back.
  bool covers(const engine::BytesBelow& below, uint32_t node) const {
    constexpr engine::ByteGroups kAboveAscii = engine::ByteGroups(1) << engine::BytesBelow::kAboveAscii;
    if ((below.groups(node) & ~groups) != 0) return false;
    return (below.groups(node) & kAboveAscii) == 0 || below.are_characters(node);
  }
};

// `after(state, byte)` is a number of a state, and `is_usual(state)` tells whether tokens
// may simply end there.
template <typename After, typename IsUsual>
Loop loop_of(uint32_t state, After after, IsUsual is_usual) {
  using engine::BytesBelow;
  namespace utf8 = engine::utf8;
  Loop loop;
  if (!is_usual(state)) return loop;
  engine::ByteGroups others = 0;
  for (uint32_t byte = 0; byte < 0x80; ++byte) {
    engine::ByteGroups group = engine::ByteGroups(1) << BytesBelow::group_of(uint8_t(byte));
    if ((others & group) != 0) continue;
    (after(state, uint8_t(byte)) == state ? loop.groups : others) |= group;
  }
  loop.groups &= ~others;
  if (loop.groups == 0) return loop;
  // Each state of UTF-8 must lead through one state, so that all characters lead back.
  std::array<uint32_t, utf8::kNumStates> at;
  at.fill(UINT32_MAX);
  at[utf8::kBetween] = state;
  std::vector<uint8_t> pending = {utf8::kBetween};
  while (!pending.empty()) {
    uint8_t from = pending.back();
    pending.pop_back();
    for (uint32_t byte = 0x80; byte < 0x100; ++byte) {
      uint8_t to = utf8::after(from, uint8_t(byte));
      if (to == utf8::kInvalid) continue;
      uint32_t next = after(at[from], uint8_t(byte));
      if (at[to] == UINT32_MAX) {
        if (!is_usual(next)) return loop;
        at[to] = next;
        pending.push_back(to);
      } else if (at[to] != next) {
        return loop;
      }
    }
  }
  loop.groups |= engine::ByteGroups(1) << BytesBelow::kAboveAscii;
  return loop;
}

// The loops of states, as far as they were asked for.
class Loops {
 public:
  template <typename After, typename IsUsual>
  Loop of(uint32_t state, After after, IsUsual is_usual) {
    if (is_known_.size() <= state) {
      is_known_.resize(state + 1);
      loops_.resize(state + 1);
    }
    if (!is_known_[state]) {
      loops_[state] = loop_of(state, after, is_usual);
      is_known_[state] = 1;
    }
    return loops_[state];
  }
  size_t memory_bytes() const { return loops_.capacity() * sizeof(Loop) + is_known_.capacity(); }

 private:
  std::vector<Loop> loops_;
  std::vector<uint8_t> is_known_;
};

}  // namespace structout::context_free
