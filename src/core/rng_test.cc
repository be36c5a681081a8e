#include "core/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace kvartet {
namespace {

// Results name their seed, so the numbers of a seed may never change: these are pinned.
TEST(Rng, TheNumbersOfASeedStayTheSame) {
  Rng rng(1);
  EXPECT_EQ(rng.next(), 0x85c61a300ec70fa1ULL);
  EXPECT_EQ(rng.next(), 0x4952c2a6e1ef0b78ULL);
  EXPECT_EQ(Rng(1, 7).next(), 0x57c324c96eea3787ULL);
}

TEST(Rng, TheNthNumberDoesNotDependOnWhoDrewBefore) {
  const Rng still(42, 3);
  Rng walking(42, 3);
  for (std::uint64_t n = 0; n < 1000; ++n) EXPECT_EQ(walking.next(), still.at(n));
}

TEST(Rng, SeedsAndStreamsDiffer) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (std::uint64_t stream = 0; stream < 50; ++stream) {
      for (std::uint64_t n = 0; n < 4; ++n) seen.insert(Rng(seed, stream).at(n));
    }
  }
  EXPECT_EQ(seen.size(), 50U * 50U * 4U);
}

struct Moments {
  double mean = 0;
  double variance = 0;
};

template <typename Draw>
Moments moments(int count, Draw draw) {
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < count; ++i) {
    const double x = draw();
    sum += x;
    squares += x * x;
  }
  const double mean = sum / count;
  return {mean, squares / count - mean * mean};
}

// Bounds: 5 standard errors of the mean and of the variance for 200,000 draws.
TEST(Rng, UniformHasTheMomentsOfTheUnitInterval) {
  Rng rng(5);
  double low = 1;
  double high = 0;
  const Moments m = moments(200000, [&] {
    const double x = rng.uniform();
    low = std::min(low, x);
    high = std::max(high, x);
    return x;
  });
  EXPECT_GE(low, 0.0);
  EXPECT_LT(high, 1.0);
  EXPECT_NEAR(m.mean, 0.5, 0.0033);
  EXPECT_NEAR(m.variance, 1.0 / 12, 0.0009);
}

TEST(Rng, NormalHasMeanZeroAndVarianceOne) {
  Rng rng(6);
  const Moments m = moments(200000, [&] { return rng.normal(); });
  EXPECT_NEAR(m.mean, 0.0, 0.0112);
  EXPECT_NEAR(m.variance, 1.0, 0.0159);
}

TEST(Rng, BelowIsEvenOverItsRange) {
  Rng rng(7);
  std::vector<int> counts(10);
  for (int i = 0; i < 100000; ++i) ++counts.at(rng.below(10));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 475);  // 5 standard deviations
  EXPECT_EQ(rng.below(1), 0U);
}

}  // namespace
}  // namespace kvartet
