// Loops: states that many bytes lead back to, such as those inside strings, comments and
// names.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/utf8.h"
#include "token_masks/bytes_below.h"

namespace structout::context_free {

// The bytes that lead from a state back to it. Inside a JSON string, for example, letters,
// digits and most other characters do. So most tokens need not be walked byte by byte
// there: see below_in().
struct Loop {
  engine::ByteGroups groups = 0;  // all their bytes lead back; those above ASCII as whole characters
  engine::ByteGroups dead = 0;    // all their bytes lead nowhere
  bool is_strict = false;         // true if invalid UTF-8 leads nowhere, if `groups` has characters above ASCII
  std::array<uint32_t, engine::utf8::kNumStates> inside{};  // the states inside such characters, by the state of UTF-8
};

// The tokens below a node of the trie that are allowed since they stay in a loop.
enum class Below : uint8_t {
  kUnknown,  // some tokens may lead elsewhere
  kNone,
  kAll,
  kThoseLike,  // the tokens whose bytes all lead back; the last character may be cut
};

// `utf8_state`: the state of UTF-8 after the bytes of the node.
inline Below below_in(const Loop& loop, const engine::BytesBelow& bytes, uint32_t node, uint8_t utf8_state) {
  using engine::BytesBelow;
  engine::ByteGroups groups = bytes.groups(node);
  if ((groups & ~(loop.groups | loop.dead)) != 0) return Below::kUnknown;
  if ((groups & loop.groups) == 0 && utf8_state == engine::utf8::kBetween) return Below::kNone;
  bool has_other = (groups & BytesBelow::kAboveAscii & loop.groups) != 0 || utf8_state != engine::utf8::kBetween;
  has_other = has_other && !bytes.are_characters(node, utf8_state);
  if (has_other && !loop.is_strict) return Below::kUnknown;
  return has_other || (groups & loop.dead) != 0 ? Below::kThoseLike : Below::kAll;
}

// Computes the loop of a state. `after(state, byte)` returns the next state.
// `is_usual(state)` is true if tokens may end there as anywhere in the loop.
// `is_dead(state, next)` is true if no text continues by a byte that leads from `state` to
// `next`.
template <typename After, typename IsUsual, typename IsDead>
Loop loop_of(uint32_t state, After after, IsUsual is_usual, IsDead is_dead) {
  using engine::BytesBelow;
  namespace utf8 = engine::utf8;
  Loop loop;
  const bool may_loop = is_usual(state);
  engine::ByteGroups others = 0, alive = 0;
  for (uint32_t byte = 0; byte < 0x100; ++byte) {
    engine::ByteGroups group = BytesBelow::group_of(uint8_t(byte));
    if ((others & alive & group) != 0) continue;
    uint32_t next = after(state, uint8_t(byte));
    (is_dead(state, next) ? loop.dead : alive) |= group;
    (may_loop && next == state && byte < 0x80 ? loop.groups : others) |= group;
  }
  loop.dead &= ~alive;
  loop.groups &= ~others;
  if (!may_loop || loop.groups == 0) return loop;
  // Inside characters there must be one state for each state of UTF-8, so that all
  // characters lead back.
  std::array<uint32_t, utf8::kNumStates>& at = loop.inside;
  at.fill(UINT32_MAX);
  at[utf8::kBetween] = state;
  loop.is_strict = true;
  std::vector<uint8_t> pending = {utf8::kBetween};
  while (!pending.empty()) {
    uint8_t from = pending.back();
    pending.pop_back();
    for (uint32_t byte = from == utf8::kBetween ? 0x80 : 0; byte < 0x100; ++byte) {
      uint8_t to = utf8::after(from, uint8_t(byte));
      uint32_t next = after(at[from], uint8_t(byte));
      if (to == utf8::kInvalid) {
        loop.is_strict = loop.is_strict && is_dead(at[from], next);
      } else if (at[to] == UINT32_MAX) {
        if (!is_usual(next)) return loop;
        at[to] = next;
        pending.push_back(to);
      } else if (at[to] != next) {
        return loop;
      }
    }
  }
  loop.groups |= BytesBelow::kAboveAscii;
  return loop;
}

// Caches the loops of states, which it computes on first use.
class Loops {
 public:
  // A point in the loop of `state`: between characters, or inside a character in a state
  // of UTF-8.
  struct Point {
    uint32_t state;
    uint8_t utf8_state;
  };

  template <typename After, typename IsUsual, typename IsDead>
  Point point_of(uint32_t state, After after, IsUsual is_usual, IsDead is_dead) {
    if (points_.size() <= state) {
      loops_.resize(state + 1);  // first: points_ is resized only once loops_ is large enough
      points_.resize(state + 1, {kNone, 0});
    }
    if (points_[state].state == kNone) {
      Loop loop = loops_[state] = loop_of(state, after, is_usual, is_dead);
      points_[state] = {state, engine::utf8::kBetween};
      for (uint8_t each = 1; each < engine::utf8::kNumStates; ++each) {
        if ((loop.groups & engine::BytesBelow::kAboveAscii) == 0) break;
        uint32_t inside = loop.inside[each];
        if (points_.size() <= inside) {
          loops_.resize(inside + 1);
          points_.resize(inside + 1, {kNone, 0});
        }
        if (points_[inside].state == kNone) points_[inside] = {state, each};
      }
    }
    return points_[state];
  }
  const Loop& loop(uint32_t state) const { return loops_[state]; }
  size_t memory_bytes() const { return loops_.capacity() * sizeof(Loop) + points_.capacity() * sizeof(Point); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  std::vector<Loop> loops_;
  std::vector<Point> points_;  // by state
};

}  // namespace structout::context_free
