// The transform against its definition (compression.md 3.4): H[i][j] = (-1)^popcount(i & j), on every instruction set.
#include "quantize/walsh_hadamard.h"

#include <algorithm>
#include <bit>
#include <vector>

#include <gtest/gtest.h>

#include "core/rng.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

TEST(WalshHadamard, IsTheMatrixOfSignsOnEveryTarget34) {
  Rng rng(1);
  for (std::size_t n = 1; n <= 1024; n *= 2) {
    std::vector<float> x(n);
    for (float& v : x) v = static_cast<float>(static_cast<int>(rng.uniform() * 201) - 100);  // whole numbers: sums are exact
    for (const SimdTarget& target : simd_targets()) {
      const ScopedSimdTarget scope(target);
      std::vector<float> y(n + 3, 7.0F);
      std::copy(x.begin(), x.end(), y.begin() + 1);
      walsh_hadamard(y.data() + 1, n);  // not aligned
      EXPECT_EQ(y.front(), 7.0F);
      EXPECT_EQ(y[n + 1], 7.0F);
      for (std::size_t i = 0; i < n; ++i) {
        float expected = 0;
        for (std::size_t j = 0; j < n; ++j) expected += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
        ASSERT_EQ(y[i + 1], expected) << target.name << ", " << n << " numbers, " << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
