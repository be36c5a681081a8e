#include "cache/round_f16.h"

#include <gtest/gtest.h>

#include "core/float16.h"
#include "core/rng.h"

namespace kvartet {
namespace {

void expect_as_stored(std::uint32_t bits) {
  const float x = std::bit_cast<float>(bits);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(round_to_f16(x)), std::bit_cast<std::uint32_t>(float_from_f16(f16_from_float(x))))
      << bits;
}

// Every f16 number, the middles between neighbours and the floats right beside both.
TEST(RoundF16, EqualsTheStoredNumberAtEveryBorder) {
  for (std::uint32_t h = 0; h < 0x7c00U; ++h) {
    const std::uint32_t here = std::bit_cast<std::uint32_t>(float_from_f16(static_cast<std::uint16_t>(h)));
    const std::uint32_t next =
        h + 1 < 0x7c00U ? std::bit_cast<std::uint32_t>(float_from_f16(static_cast<std::uint16_t>(h + 1))) : 0x47800000U;
    const std::uint32_t middle = here + (next - here) / 2;
    for (const std::uint32_t bits : {here, here + 1, middle - 1, middle, middle + 1, next - 1}) {
      expect_as_stored(bits);
      expect_as_stored(bits | 0x80000000U);
    }
  }
}

TEST(RoundF16, EqualsTheStoredNumberAtRandom) {
  Rng rng(1);
  for (int i = 0; i < 200000; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(rng.next());
    if ((bits & 0x7f800000U) != 0x7f800000U) expect_as_stored(bits);
  }
}

}  // namespace
}  // namespace kvartet
