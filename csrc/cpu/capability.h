// Which vector instructions the kernels may use. STRUCTOUT_CPU_CAPABILITY=default|avx2|avx512 lowers the choice.
#pragma once

namespace structout::cpu {

enum class Capability { kDefault, kAvx2, kAvx512 };

Capability capability();
const char* capability_name(Capability capability);

}  // namespace structout::cpu
