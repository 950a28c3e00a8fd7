// Parallel loops for kernels that do not depend on torch.
#pragma once

#include <cstdint>
#include <functional>

namespace structout::cpu {

// Runs task(0) ... task(count - 1) on any threads in any order, and waits for them.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& task)>;

}  // namespace structout::cpu
