// UTF-8 as a deterministic automaton: state 0 is between characters, the others know
// the bytes that must follow.
#pragma once

#include <cstdint>

namespace structout::engine::utf8 {

constexpr uint8_t kBetween = 0, kNumStates = 8, kInvalid = kNumStates;

// The state after a byte, or kInvalid. Refuses overlong forms, surrogates and code
// points above U+10FFFF.
constexpr uint8_t after(uint8_t state, uint8_t byte) {
  enum : uint8_t { kOneMore = 1, kTwoMore, kThreeMore, kAfterE0, kAfterED, kAfterF0, kAfterF4 };
  auto in = [byte](uint8_t first, uint8_t last) { return first <= byte && byte <= last; };
  switch (state) {
    case kBetween:
      if (byte < 0x80) return kBetween;
      if (in(0xC2, 0xDF)) return kOneMore;
      if (byte == 0xE0) return kAfterE0;
      if (byte == 0xED) return kAfterED;
      if (in(0xE1, 0xEF)) return kTwoMore;
      if (byte == 0xF0) return kAfterF0;
      if (byte == 0xF4) return kAfterF4;
      return in(0xF1, 0xF3) ? uint8_t(kThreeMore) : kInvalid;
    case kOneMore:
      return in(0x80, 0xBF) ? kBetween : kInvalid;
    case kTwoMore:
      return in(0x80, 0xBF) ? uint8_t(kOneMore) : kInvalid;
    case kThreeMore:
      return in(0x80, 0xBF) ? uint8_t(kTwoMore) : kInvalid;
    case kAfterE0:
      return in(0xA0, 0xBF) ? uint8_t(kOneMore) : kInvalid;
    case kAfterED:
      return in(0x80, 0x9F) ? uint8_t(kOneMore) : kInvalid;
    case kAfterF0:
      return in(0x90, 0xBF) ? uint8_t(kTwoMore) : kInvalid;
    case kAfterF4:
      return in(0x80, 0x8F) ? uint8_t(kTwoMore) : kInvalid;
  }
  return kInvalid;
}

}  // namespace structout::engine::utf8
