// bfloat16 as it is stored: the upper half of an IEEE float.
#pragma once

#include <bit>
#include <cstdint>

namespace kvartet {

// Rounds to nearest even. The input is finite; a magnitude beyond the largest bfloat16 becomes infinite.
inline std::uint16_t bf16_from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

inline float float_from_bf16(std::uint16_t h) { return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16); }

}  // namespace kvartet
