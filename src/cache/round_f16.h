// Rounding to numbers that f16 holds, without leaving float.
//
// KIVI encodes rows that have waited in f16 (compression.md 2.3). Rows that a long prompt encodes at once must take the
// same rounding, or feeding them one by one would give other codes (T8).
#pragma once

#include <bit>
#include <cstdint>

namespace kvartet {

// Nearest f16 number, ties to even; beyond f16's range it returns Inf. x must be finite. Branch-free: vectorizes.
inline float round_to_f16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits & 0x80000000U;
  const std::uint32_t abs = bits & 0x7fffffffU;
  // f16 keeps 10 bits of the fraction's 23; below 2^-14 its step is 2^-24, which is the last bit of a float in [0.5, 1).
  const std::uint32_t normal = (abs + 0xfffU + ((abs >> 13) & 1U)) & ~0x1fffU;
  const std::uint32_t small = std::bit_cast<std::uint32_t>((std::bit_cast<float>(abs) + 0.5F) - 0.5F);
  const std::uint32_t rounded = abs < 0x38800000U ? small : normal;
  return std::bit_cast<float>(sign | (rounded >= 0x47800000U ? 0x7f800000U : rounded));
}

}  // namespace kvartet
