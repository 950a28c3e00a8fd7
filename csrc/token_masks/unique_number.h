// Numbers for what the keys of masks are made of.
#pragma once

#include <atomic>
#include <cstdint>

namespace structout::engine {

// A number above 0, another one with each call.
inline uint32_t unique_number() {
  static std::atomic<uint32_t> next{1};
  return next++;
}

}  // namespace structout::engine
