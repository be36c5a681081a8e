// FP8 E4M3 (fn) as it is stored: bias 7, no infinity, the largest number is 448, 0x7f and 0xff are NaN. Rounds to nearest
// even; what is too large becomes 448 (compression.md 7.3), so that only NaN gives NaN. The portable form for single
// values; kernels convert whole vectors.
#pragma once

#include <bit>
#include <cstdint>

namespace kvartet {

inline constexpr float kMaxE4m3 = 448.0F;

inline std::uint8_t e4m3_from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const std::uint32_t abs = bits & 0x7fffffffU;
  if (abs > 0x7f800000U) return sign | 0x7fU;                              // NaN
  if (abs >= std::bit_cast<std::uint32_t>(kMaxE4m3)) return sign | 0x7eU;  // saturates
  if (abs < 0x3c800000U) {                                                 // below 2^-6: subnormal or zero
    // Adding 2^14 aligns the last kept bit (2^-9) with the last bit of the sum, which then rounds to nearest even.
    const float shifted = std::bit_cast<float>(abs) + 0x1.0p14F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000U));
  }
  const std::uint32_t odd = (abs >> 20) & 1U;
  return static_cast<std::uint8_t>(sign | ((abs - 0x3c000000U + 0x7ffffU + odd) >> 20));
}

inline float float_from_e4m3(std::uint8_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x80U) << 24;
  const std::uint32_t abs = h & 0x7fU;
  if (abs == 0x7fU) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (abs < 8) return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(abs) * 0x1.0p-9F));
  return std::bit_cast<float>(sign | ((abs << 20) + 0x3c000000U));
}

}  // namespace kvartet
