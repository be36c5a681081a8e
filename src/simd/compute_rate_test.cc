#include "simd/compute_rate.h"

#include <gtest/gtest.h>

#include "simd/targets.h"

namespace kvartet {
namespace {

// Every instruction set does the work it counts: no processor does a thousand multiply-adds a cycle and core.
TEST(ComputeRate, IsARateOnEveryTarget) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scoped(target);
    for (const int threads : {1, 3}) {
      const double gflop_per_s = compute_rate(threads);
      EXPECT_GT(gflop_per_s, 0.01) << target.name;
      EXPECT_LT(gflop_per_s, 10'000.0 * threads) << target.name;
    }
  }
}

}  // namespace
}  // namespace kvartet
