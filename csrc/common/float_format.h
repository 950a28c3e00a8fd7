// The formats of logits.
#pragma once

#include <cstdint>
#include <type_traits>

namespace structout {

enum class FloatFormat : int32_t { kFloat32, kFloat16, kBFloat16 };

// Calls use(std::integral_constant<FloatFormat, format>).
template <class Use>
void with_format(FloatFormat format, const Use& use) {
  switch (format) {
    case FloatFormat::kFloat32:
      return use(std::integral_constant<FloatFormat, FloatFormat::kFloat32>{});
    case FloatFormat::kFloat16:
      return use(std::integral_constant<FloatFormat, FloatFormat::kFloat16>{});
    case FloatFormat::kBFloat16:
      return use(std::integral_constant<FloatFormat, FloatFormat::kBFloat16>{});
  }
}

}  // namespace structout
