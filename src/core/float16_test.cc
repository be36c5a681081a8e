#include "core/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvartet {
namespace {

// The judge: the compiler's own binary16.
std::uint16_t reference_f16(float x) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x)); }
float reference_float(std::uint16_t h) { return static_cast<float>(std::bit_cast<_Float16>(h)); }

void expect_same(float x) {
  const std::uint16_t got = f16_from_float(x);
  const std::uint16_t expected = reference_f16(x);
  if (std::isnan(x)) {
    ASSERT_TRUE((got & 0x7c00U) == 0x7c00U && (got & 0x3ffU) != 0) << "NaN became " << std::hex << got;
  } else {
    ASSERT_EQ(got, expected) << std::hexfloat << x;
  }
}

TEST(Float16, EveryStoredValueBecomesTheSameFloat) {
  for (std::uint32_t h = 0; h <= 0xffffU; ++h) {
    const auto stored = static_cast<std::uint16_t>(h);
    const float got = float_from_f16(stored);
    const float expected = reference_float(stored);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << std::hex << h;
      ASSERT_EQ(std::signbit(got), (h & 0x8000U) != 0) << std::hex << h;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(expected)) << std::hex << h;
      ASSERT_EQ(f16_from_float(got), h);  // and back
    }
  }
}

// Rounding can only go wrong at a border between two results: every border, and the floats on both sides of it.
TEST(Float16, EveryRoundingBorderIsRight) {
  for (std::uint32_t h = 0; h < 0x7c00U; ++h) {
    const float low = reference_float(static_cast<std::uint16_t>(h));
    const float high = h == 0x7bffU ? 65536.0F : reference_float(static_cast<std::uint16_t>(h + 1));
    const float middle = low + (high - low) / 2;  // exact: one bit more than binary16 has
    for (const float x : {low, std::nextafter(low, high), std::nextafter(middle, low), middle, std::nextafter(middle, high),
                          std::nextafter(high, low)}) {
      expect_same(x);
      expect_same(-x);
    }
  }
}

TEST(Float16, ASweepOverAllFloatsIsRight) {
  constexpr std::uint64_t kStride = 1009;  // prime, so that all low bits occur
  for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStride)
    expect_same(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
}

TEST(Float16, TheEndsOfTheRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_from_f16(f16_from_float(kMaxF16)), kMaxF16);
  EXPECT_EQ(float_from_f16(f16_from_float(65519.996F)), kMaxF16);
  EXPECT_EQ(float_from_f16(f16_from_float(65520.0F)), kInfinity);
  EXPECT_EQ(float_from_f16(f16_from_float(-kInfinity)), -kInfinity);
  EXPECT_EQ(float_from_f16(f16_from_float(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(f16_from_float(0x1.0p-25F), 0U);  // half of the smallest, ties to even
  EXPECT_EQ(f16_from_float(0x1.000002p-25F), 1U);
  EXPECT_EQ(f16_from_float(-0.0F), 0x8000U);
}

}  // namespace
}  // namespace kvartet
