#include "quantize/f16_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/float16.h"
#include "core/normals_fixture.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

TEST(F16Numbers, RoundLikeTheSlowWayOnEveryTarget) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const std::size_t count : {8U, 24U, 64U, 128U}) {
      std::vector<float> numbers = normals(count, count);
      numbers[1] = 65519.0F;
      numbers[2] = -0.0F;
      numbers[3] = 1e-9F;
      std::vector<std::byte> out(2 * count + 1, std::byte{7});
      ASSERT_TRUE(narrow_finite_f16(numbers, out.data()));
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, out.data() + 2 * i, sizeof(bits));
        EXPECT_EQ(bits, f16_from_float(numbers[i])) << target.name << " " << numbers[i];
      }
      EXPECT_EQ(out.back(), std::byte{7});
    }
  }
}

TEST(F16Numbers, WhatIsNotFiniteIsFoundAnywhere) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const float bad : {65520.0F, -65520.0F, kInfinity, -kInfinity, std::nanf("")}) {
      for (std::size_t at = 0; at < 24; ++at) {
        std::vector<float> numbers(24, 1.0F);
        numbers[at] = bad;
        std::vector<std::byte> out(48);
        EXPECT_FALSE(narrow_finite_f16(numbers, out.data())) << target.name << " " << bad << " at " << at;
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
