// IEEE binary16 as it is stored. Conversions round to nearest even, as F16C does: this is the
// portable form for single values; kernels convert whole vectors.
#pragma once

#include <bit>
#include <cstdint>

namespace kvartet {

inline constexpr float kMaxF16 = 65504.0F;

inline std::uint16_t f16_from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t abs = bits & 0x7fffffffU;
  if (abs > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);   // NaN
  if (abs >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // rounds to 65,536 or more: infinity
  if (abs < 0x38800000U) {                                                    // subnormal or zero
    // Adding 0.5 aligns the last kept bit (2^-24) with the last bit of the sum, which then rounds to nearest even.
    const float shifted = std::bit_cast<float>(abs) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t odd = (abs >> 13) & 1U;
  return static_cast<std::uint16_t>(sign | ((abs - 0x38000000U + 0xfffU + odd) >> 13));
}

inline float float_from_f16(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t abs = h & 0x7fffU;
  if (abs >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | ((abs & 0x3ffU) << 13));
  if (abs < 0x400U) {  // subnormal: abs * 2^-24
    const float value = static_cast<float>(abs) * 0x1.0p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((abs << 13) + 0x38000000U));
}

}  // namespace kvartet
