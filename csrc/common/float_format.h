// The formats of logits.
#pragma once

#include <cstdint>

namespace structout {

enum class FloatFormat : int32_t { kFloat32, kFloat16, kBFloat16 };

}  // namespace structout
