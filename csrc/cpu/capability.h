// The vector instructions that the CPU kernels use: the best that the machine has, or
// fewer if STRUCTOUT_CPU_CAPABILITY=default|avx2|avx512 asks for fewer.
#pragma once

namespace structout::cpu {

enum class Capability { kDefault, kAvx2, kAvx512 };

// Throws std::invalid_argument if STRUCTOUT_CPU_CAPABILITY has any other value.
Capability capability();
const char* capability_name(Capability capability);

}  // namespace structout::cpu
