#include "cpu/capability.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace structout::cpu {
namespace {

// Every set of instructions that a file of this folder is compiled with must be asked for here; but for prfchw, a hint
// that all processors of x86-64 take.
Capability best_of_this_machine() {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") &&
                        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx2) return has_avx512 ? Capability::kAvx512 : Capability::kAvx2;
#endif
  return Capability::kDefault;
}

Capability detect() {
  const Capability best = best_of_this_machine();
  const char* wish = std::getenv("STRUCTOUT_CPU_CAPABILITY");
  if (wish == nullptr) return best;
  for (Capability c : {Capability::kDefault, Capability::kAvx2, Capability::kAvx512}) {
    if (std::strcmp(wish, capability_name(c)) == 0) return std::min(c, best);
  }
  throw std::invalid_argument(std::string("STRUCTOUT_CPU_CAPABILITY must be default, avx2 or avx512, got ") + wish);
}

}  // namespace

Capability capability() {
  static const Capability chosen = detect();
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
