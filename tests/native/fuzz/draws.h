// Choices that the bytes of an input make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/hash.h"

namespace structout::fuzz {

// Ends the process, which is what a fuzzer looks for.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "it does not hold that %s\n", what);
  std::abort();
}

// Where the bytes end, numbers made from all of them go on: short inputs have long walks.
class Draws {
 public:
  Draws(const uint8_t* bytes, size_t size) : at_(bytes), end_(bytes + size), state_(engine::hash_bytes(bytes, size)) {}
  explicit Draws(const std::string& bytes) : Draws(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) {}

  // A number below the bound: of one byte, or of two where one is too few.
  size_t below(size_t bound) {
    size_t value = byte();
    if (bound > 256) value |= byte() << 8;
    return value % bound;
  }

  bool one_in(size_t count) { return below(count) == 0; }

  // Up to `max_size` of the bytes.
  std::string text(size_t max_size) {
    std::string bytes;
    for (size_t left = below(max_size + 1); left > 0; --left) bytes.push_back(char(byte()));
    return bytes;
  }

 private:
  size_t byte() {
    if (at_ < end_) return *at_++;
    state_ = engine::mix(state_, 1);
    return state_ >> 56;
  }

  const uint8_t* at_;
  const uint8_t* const end_;
  uint64_t state_;
};

// A text to compile, and the choices behind its last NUL, if it has one. So the texts of a
// corpus can be read and written by hand.
struct TextAndDraws {
  std::string text;
  std::string choices;

  TextAndDraws(const uint8_t* bytes, size_t size) : text(reinterpret_cast<const char*>(bytes), size) {
    size_t nul = text.rfind('\0');
    if (nul == std::string::npos) return;
    choices = text.substr(nul + 1);
    text.resize(nul);
  }

  // Without choices the text makes them.
  Draws draws() const { return Draws(choices.empty() ? text : choices); }
};

}  // namespace structout::fuzz
