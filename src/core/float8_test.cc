#include "core/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/rng.h"

namespace kvartet {
namespace {

// The judge: sign * 2^(exponent - 7) * (1 + mantissa / 8), subnormals 2^-6 * mantissa / 8.
double reference_value(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -value : value;
}

// The nearest of all numbers; of two equally near the even code.
int reference_code(double x) {
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::fabs(reference_value(code) - std::fabs(x));
    const double shortest = std::fabs(reference_value(best) - std::fabs(x));
    if (distance < shortest || (distance == shortest && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

TEST(Float8, EveryCodeDecodesToItsFormula) {
  for (int code = 0; code < 256; ++code) {
    const float got = float_from_e4m3(static_cast<std::uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(got)) << code;
      continue;
    }
    EXPECT_EQ(got, reference_value(code)) << code;
    EXPECT_EQ(std::signbit(got), code >= 0x80) << code;
    EXPECT_EQ(e4m3_from_float(got), code);
  }
}

TEST(Float8, EveryRoundingBorderIsRight) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<float>(reference_value(code));
    const auto high = static_cast<float>(reference_value(code + 1));
    const float middle = low + (high - low) / 2;
    for (const float x : {low, std::nextafter(low, high), std::nextafter(middle, low), middle, std::nextafter(middle, high),
                          std::nextafter(high, low)}) {
      ASSERT_EQ(e4m3_from_float(x), reference_code(x)) << std::hexfloat << x;
      ASSERT_EQ(e4m3_from_float(-x), reference_code(-x)) << std::hexfloat << x;
    }
  }
}

// compression.md 7.3
TEST(Float8, VectorsOfTheSpec) {
  struct Case {
    float x, expected;
  };
  for (const Case& c : std::vector<Case>{
           {0.1F, 0.1015625F}, {1.0625F, 1.0F}, {3.3F, 3.25F}, {300, 288}, {460, 448}, {0.001F, 0.001953125F}, {0.0009F, 0}}) {
    EXPECT_EQ(float_from_e4m3(e4m3_from_float(c.x)), c.expected) << c.x;
    EXPECT_EQ(float_from_e4m3(e4m3_from_float(-c.x)), -c.expected) << c.x;
  }
}

// offloading.md 2.1: T-FP8.
TEST(Float8, TFp8CheckValues) {
  struct Case {
    float x, expected;
  };
  for (const Case& c : std::vector<Case>{{17, 16},
                                         {19, 20},
                                         {0x1p-10F, 0},
                                         {0x3p-10F, 0x1p-8F},
                                         {449, 448},
                                         {-1000, -448},
                                         {448, 448},
                                         {0x1p-6F, 0x1p-6F},
                                         {0x1p-9F, 0x1p-9F}}) {
    EXPECT_EQ(float_from_e4m3(e4m3_from_float(c.x)), c.expected) << c.x;
  }
  int finite = 0;
  for (int code = 0; code < 256; ++code) {
    const float x = float_from_e4m3(static_cast<std::uint8_t>(code));
    if (std::isnan(x)) continue;
    ++finite;
    EXPECT_EQ(e4m3_from_float(x), code) << x;
  }
  EXPECT_EQ(finite, 254);
  for (const auto& [deviation, expected] : {std::pair{1.0, 7.1e-4}, {0.01, 3.2e-3}}) {
    Rng rng(3);
    double error = 0;
    double norm = 0;
    for (int i = 0; i < 400000; ++i) {
      const auto x = static_cast<float>(deviation * rng.normal());
      const double lost = static_cast<double>(float_from_e4m3(e4m3_from_float(x))) - x;
      error += lost * lost;
      norm += static_cast<double>(x) * x;
    }
    EXPECT_NEAR(error / norm, expected, 0.03 * expected) << deviation;
  }
}

TEST(Float8, SaturatesAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_from_e4m3(e4m3_from_float(infinity)), kMaxE4m3);
  EXPECT_EQ(float_from_e4m3(e4m3_from_float(-infinity)), -kMaxE4m3);
  EXPECT_EQ(float_from_e4m3(e4m3_from_float(std::numeric_limits<float>::max())), kMaxE4m3);
  EXPECT_TRUE(std::isnan(float_from_e4m3(e4m3_from_float(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace kvartet
