// Characters that patterns tend to treat alike, in 64 classes, each a bit.
#pragma once

#include <cstdint>

namespace structout::engine {

// Control characters except those of kOtherWhitespace, the quote, the backslash,
// U+2028, U+2029, and bytes that are not UTF-8.
constexpr uint64_t kOtherCharacters = uint64_t(1) << 63;

// Tabs, line feeds and carriage returns: they stand between JSON's tokens, not in strings.
constexpr uint64_t kOtherWhitespace = uint64_t(1) << 62;

constexpr uint64_t class_of_ascii(uint8_t byte) {
  if (byte == '\t' || byte == '\n' || byte == '\r') return kOtherWhitespace;
  if (byte < 0x20 || byte > 0x7E || byte == '"' || byte == '\\') return kOtherCharacters;
  if (byte >= '0' && byte <= '9') return 1;
  bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
  if (is_letter) return uint64_t(1) << ((byte >= 'a' ? 1 : 2) + ((byte | 0x20) > 'f' ? 2 : 0));
  uint32_t num_before = byte < '0' ? 0 : byte < 'A' ? 10 : byte < 'a' ? 36 : 62;  // digits and letters
  return uint64_t(1) << (5 + byte - 0x20 - num_before);
}

// The class of a character outside of ASCII, by its first byte. The first bytes of most
// white space and punctuation, 0xC2, 0xE1, 0xE2, 0xE3 and 0xEF, have a class each; most
// others share one with their neighbours.
constexpr uint64_t class_of_character(uint8_t first_byte) {
  constexpr uint8_t kBounds[] = {0xC3, 0xCC, 0xCE, 0xD0, 0xD4, 0xD8, 0xE0, 0xE1, 0xE2, 0xE3, 0xE4, 0xEA, 0xEF, 0xF0};
  uint32_t number = 40;
  for (uint8_t bound : kBounds) number += first_byte >= bound;
  return uint64_t(1) << number;
}

}  // namespace structout::engine
