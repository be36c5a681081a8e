#include "simd/targets.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/float16.h"
#include "core/rng.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/targets_test.cc"
#include "simd/dispatch.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {

const char* compiled_for() { return hwy::TargetName(HWY_TARGET); }

// count is a multiple of 16.
void to_f16(const float* from, std::size_t count, std::uint16_t* to) {
  const hn::CappedTag<float, 16> d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) store_f16(hn::LoadU(d, from + i), d, to + i);
}
void from_f16(const std::uint16_t* from, std::size_t count, float* to) {
  const hn::CappedTag<float, 16> d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) hn::StoreU(load_f16(d, from + i), d, to + i);
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {
namespace {

HWY_EXPORT(compiled_for);
HWY_EXPORT(to_f16);
HWY_EXPORT(from_f16);

TEST(SimdTargets, ScopeChoosesTheVersionThatRuns) {
  ASSERT_FALSE(simd_targets().empty());
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    EXPECT_EQ(SIMD_CHOOSE(compiled_for)(), hwy::TargetName(target.bit));
  }
  EXPECT_EQ(SIMD_CHOOSE(compiled_for)(), hwy::TargetName(simd_targets().front().bit));
}

TEST(SimdTargets, ScopeAllowsTheExtensionsUpToItsOwn) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const SimdExtension extension : {SimdExtension::kAvx2, SimdExtension::kVnni, SimdExtension::kBf16}) {
      EXPECT_EQ(uses_extension(extension), extension <= target.extension) << target.name;
    }
  }
  EXPECT_EQ(uses_extension(SimdExtension::kBf16), simd_targets().front().extension == SimdExtension::kBf16);
}

TEST(F16Lanes, EveryNumberWidensAsInCore) {
  std::vector<std::uint16_t> halves;
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    if ((bits & 0x7c00U) != 0x7c00U) halves.push_back(static_cast<std::uint16_t>(bits));
  }
  ASSERT_EQ(halves.size() % 16, 0U);
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    std::vector<float> wide(halves.size());
    SIMD_CHOOSE(from_f16)(halves.data(), halves.size(), wide.data());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(float_from_f16(halves[i]))) << target.name;
    }
  }
}

TEST(F16Lanes, NarrowingRoundsAsInCore) {
  // Numbers of every exponent, ties between neighbours, and the borders of the ranges.
  std::vector<float> numbers = {0.0F,       -0.0F,     0x1p-24F,     0x1p-25F,
                                0x1.8p-25F, 0x1p-14F,  0x1.ffcp-15F, 0x1.ffep-15F,
                                65504.0F,   -65519.0F, 0x1p-126F,    std::numeric_limits<float>::denorm_min()};
  Rng rng(5);
  for (int exponent = -30; exponent < 15; ++exponent) {
    for (int i = 0; i < 200; ++i) {
      const float x = std::ldexp(1.0F + static_cast<float>(rng.uniform()), exponent);
      numbers.push_back(rng.uniform() < 0.5 ? x : -x);
      const float half = float_from_f16(f16_from_float(x));
      numbers.push_back((half + float_from_f16(static_cast<std::uint16_t>(f16_from_float(x) + 1U))) / 2.0F);
    }
  }
  numbers.resize(numbers.size() / 16 * 16);
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    std::vector<std::uint16_t> halves(numbers.size());
    SIMD_CHOOSE(to_f16)(numbers.data(), numbers.size(), halves.data());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(halves[i], f16_from_float(numbers[i])) << numbers[i] << " on " << target.name;
    }
  }
}

}  // namespace
}  // namespace kvartet
#endif
