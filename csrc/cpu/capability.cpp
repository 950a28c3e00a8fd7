#include "cpu/capability.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace structout::cpu {
namespace {

// Must check every instruction set that a file of this folder is compiled for. The
// exception is prfchw, a hint that every x86-64 processor accepts.
Capability best_supported() {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") &&
                        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx2) return has_avx512 ? Capability::kAvx512 : Capability::kAvx2;
#endif
  return Capability::kDefault;
}

Capability choose() {
  const Capability best = best_supported();
  const char* variable = std::getenv("STRUCTOUT_CPU_CAPABILITY");
  const std::string requested = variable == nullptr ? "" : variable;
  if (requested.empty()) return best;
  for (Capability known : {Capability::kDefault, Capability::kAvx2, Capability::kAvx512}) {
    if (requested == capability_name(known)) return std::min(known, best);
  }
  throw std::invalid_argument("STRUCTOUT_CPU_CAPABILITY must be default, avx2 or avx512, got '" + requested +
                              "'; unset it to use the best that this machine has");
}

}  // namespace

Capability capability() {
  static const Capability chosen = choose();
  return chosen;
}

const char* capability_name(Capability capability) {
  switch (capability) {
    case Capability::kAvx512:
      return "avx512";
    case Capability::kAvx2:
      return "avx2";
    default:
      return "default";
  }
}

}  // namespace structout::cpu
