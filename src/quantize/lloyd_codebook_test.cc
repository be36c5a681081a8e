// Codebooks and distortions against the tables of compression.md 3.2.
#include "quantize/lloyd_codebook.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

namespace kvartet {
namespace {

void expect_positive_half(const LloydCodebook& book, const std::vector<double>& expected, double tolerance) {
  const std::size_t half = book.levels.size() / 2;
  ASSERT_EQ(half, expected.size());
  for (std::size_t i = 0; i < half; ++i) {
    EXPECT_NEAR(book.levels[half + i], expected[i], tolerance) << i;
    EXPECT_NEAR(book.levels[half - 1 - i], -expected[i], tolerance) << i;
  }
}

// The shipped tables are what the iteration gives, but for the last digits of another machine's exp and pow.
TEST(LloydCodebook, TablesOfRowsAreTheComputedOnes) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const auto& [rows_of, law] : {std::pair(32, 32), std::pair(64, 0), std::pair(96, 0), std::pair(256, 0)}) {
      const LloydCodebook computed = lloyd_codebook(bits, law);
      const LloydCodebook& table = lloyd_codebook_for_rows(bits, rows_of);
      ASSERT_EQ(table.levels.size(), std::size_t{1} << bits);
      for (std::size_t i = 0; i < table.levels.size(); ++i) EXPECT_NEAR(table.levels[i], computed.levels[i], 1e-9) << bits;
      EXPECT_NEAR(table.distortion, computed.distortion, 1e-9) << bits;
    }
  }
}

TEST(LloydCodebook, GaussianLimitOf32) {
  expect_positive_half(lloyd_codebook(1, 0), {0.797885}, 1e-5);
  expect_positive_half(lloyd_codebook(2, 0), {0.452780, 1.510418}, 1e-5);
  expect_positive_half(lloyd_codebook(3, 0), {0.245094, 0.756005, 1.343909, 2.151946}, 1e-5);
  expect_positive_half(lloyd_codebook(4, 0), {0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590},
                       1e-5);
}

TEST(LloydCodebook, BoundariesOf32AreMidpoints) {
  const std::vector<double> two = lloyd_codebook(2, 0).levels;
  EXPECT_NEAR((two[2] + two[3]) / 2, 0.981599, 1e-5);
  const std::vector<double> three = lloyd_codebook(3, 0).levels;
  const double expected3[] = {0.0, 0.500550, 1.049957, 1.747927};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR((three[3 + i] + three[4 + i]) / 2, expected3[i], 1e-5);
  const std::vector<double> four = lloyd_codebook(4, 0).levels;
  const double expected4[] = {0.258222, 0.522404, 0.799550, 1.099286, 1.437139, 1.843532, 2.400803};
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR((four[8 + i] + four[9 + i]) / 2, expected4[i], 1e-5);
}

TEST(LloydCodebook, ExactLawsOf32) {
  expect_positive_half(lloyd_codebook(1, 128), {0.79944}, 2e-5);
  expect_positive_half(lloyd_codebook(2, 128), {0.45245, 1.50519}, 2e-5);
  expect_positive_half(lloyd_codebook(3, 128), {0.24442, 0.75333, 1.33660, 2.13147}, 2e-5);
  expect_positive_half(lloyd_codebook(4, 128), {0.12787, 0.38638, 0.65362, 0.93710, 1.24777, 1.60434, 2.04592, 2.68886}, 2e-5);
  expect_positive_half(lloyd_codebook(3, 64), {0.24375, 0.75066, 1.32934, 2.11131}, 2e-5);
  expect_positive_half(lloyd_codebook(4, 64), {0.12735, 0.38472, 0.65049, 0.93189, 1.23940, 1.59085, 2.02331, 2.64637}, 2e-5);
  expect_positive_half(lloyd_codebook(3, 96), {0.24420, 0.75244, 1.33417, 2.12472}, 2e-5);
  expect_positive_half(lloyd_codebook(4, 32), {0.12631, 0.38141, 0.64429, 0.92161, 1.22296, 1.56448, 1.97947, 2.56498}, 2e-5);
}

TEST(LloydCodebook, DistortionsOf32) {
  const double gaussian[] = {0.363380, 0.117482, 0.034548, 0.009501, 0.002505, 0.000644};
  const double law128[] = {0.360889, 0.116000, 0.033966, 0.009315};
  const double law64[] = {0.358387, 0.114526, 0.033391, 0.009132};
  const double law32[] = {0.353357, 0.111600, 0.032261, 0.008774};
  for (int bits = 1; bits <= 6; ++bits) EXPECT_NEAR(lloyd_codebook(bits, 0).distortion, gaussian[bits - 1], 1.5e-6) << bits;
  for (int bits = 1; bits <= 4; ++bits) {
    EXPECT_NEAR(lloyd_codebook(bits, 128).distortion, law128[bits - 1], 2e-6) << bits;
    EXPECT_NEAR(lloyd_codebook(bits, 64).distortion, law64[bits - 1], 2e-6) << bits;
    EXPECT_NEAR(lloyd_codebook(bits, 32).distortion, law32[bits - 1], 2e-6) << bits;
  }
}

// The law of one coordinate, (1 - s^2 / dim)^((dim - 3) / 2), or exp(-s^2 / 2) for dim = 0; not normalized.
double density(double s, int dim) {
  return dim == 0 ? std::exp(-s * s / 2) : std::pow(std::max(0.0, 1 - s * s / dim), (dim - 3) / 2.0);
}

// The mean of the law between two borders, by Simpson's rule.
double conditional_mean(double from, double to, int dim) {
  constexpr int kSteps = 2000;
  double weight = 0;
  double moment = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const double s = from + (to - from) * i / kSteps;
    const double w = density(s, dim) * (i == 0 || i == kSteps ? 1 : i % 2 == 1 ? 4 : 2);
    weight += w;
    moment += w * s;
  }
  return moment / weight;
}

// 3.2, the condition to assert: with midpoints as borders, every level is the conditional mean of its cell.
TEST(LloydCodebook, LevelsOf32AreTheMeansOfTheirCells) {
  for (const int dim : {0, 32, 64, 128}) {
    const double end = dim == 0 ? 9.0 : std::sqrt(dim);
    for (int bits = 1; bits <= 4; ++bits) {
      const std::vector<double> levels = lloyd_codebook(bits, dim).levels;
      for (std::size_t i = 0; i < levels.size(); ++i) {
        const double from = i == 0 ? -end : (levels[i - 1] + levels[i]) / 2;
        const double to = i + 1 == levels.size() ? end : (levels[i] + levels[i + 1]) / 2;
        EXPECT_NEAR(levels[i], conditional_mean(from, to, dim), 1e-5) << bits << " bits, " << dim << " channels, level " << i;
      }
    }
  }
}

// 3.2: the list that circulates as "turbo4", whose outermost level is 0.1739 at 128 channels, has the means of sixteen cells of
// equal probability. Its borders are no midpoints, and it is not optimal.
TEST(LloydCodebook, MeansOfEquallyProbableCellsAreNotOptimal32) {
  const auto quantile = [](double p) {
    double low = -9;
    double high = 9;
    while (high - low > 1e-12) {
      const double middle = (low + high) / 2;
      const bool is_below = std::erfc(-middle / std::sqrt(2.0)) / 2 < p;
      (is_below ? low : high) = middle;
    }
    return low;
  };
  std::vector<double> levels;
  for (int i = 0; i < 16; ++i) {
    const double from = i == 0 ? -9 : quantile(i / 16.0);
    const double to = i == 15 ? 9 : quantile((i + 1) / 16.0);
    levels.push_back(conditional_mean(from, to, 0));
  }
  EXPECT_NEAR(levels.back() / std::sqrt(128.0), 0.1739, 1e-4);
  EXPECT_GT(std::abs((levels[14] + levels[15]) / 2 - quantile(15 / 16.0)), 0.05);
  EXPECT_GT(coding_distortion(levels, 0), 1.2 * lloyd_codebook(4, 0).distortion);
}

// D_1 = 1 - c^2, c = sqrt(D) Gamma(D / 2) / (sqrt(pi) Gamma((D + 1) / 2)).
TEST(LloydCodebook, ClosedFormOf32ForOneBit) {
  for (const int dim : {32, 64, 128}) {
    const double c = std::sqrt(dim / std::numbers::pi) * std::exp(std::lgamma(dim / 2.0) - std::lgamma((dim + 1) / 2.0));
    EXPECT_NEAR(lloyd_codebook(1, dim).levels[1], c, 1e-5);
    EXPECT_NEAR(lloyd_codebook(1, dim).distortion, 1 - c * c, 1e-5);
  }
}

// The bounds of 3.2, and that 7 and 8 bits go on falling fourfold.
TEST(LloydCodebook, BoundsOf32) {
  double before = 1.0;
  for (int bits = 1; bits <= 8; ++bits) {
    const double distortion = lloyd_codebook(bits, 0).distortion;
    const double bound = std::pow(4.0, -bits);
    EXPECT_GT(distortion, bound);
    EXPECT_LT(distortion, 2.72 * 1.01 * bound);
    EXPECT_LT(distortion, before / 2.7);
    before = distortion;
  }
}

// 3.2: at one bit rows shrink to 2 / pi. 3.3: D_prod(b) = (pi / 2) D(b - 1), times 1 / dim.
TEST(LloydCodebook, LimitsOf32And33FollowFromTheDistortions) {
  EXPECT_NEAR(1 - lloyd_codebook(1, 0).distortion, 2 / std::numbers::pi, 1e-6);
  const double expected[] = {1.571, 0.571, 0.185, 0.0543};
  for (int bits = 1; bits <= 4; ++bits) {
    const double coarse = bits == 1 ? 1.0 : lloyd_codebook(bits - 1, 0).distortion;
    EXPECT_NEAR(std::numbers::pi / 2 * coarse, expected[bits - 1], 6e-4) << bits;
  }
}

// 3.2: the Gaussian limit loses under 0.3 % (at 64 channels and 4 bits it is 0.43 %); the int8 grid of levels loses as little.
TEST(LloydCodebook, LimitAndGridLoseLittle) {
  for (int bits = 1; bits <= 4; ++bits) {
    const std::vector<double> limit = lloyd_codebook(bits, 0).levels;
    EXPECT_LT(coding_distortion(limit, 128), 1.003 * lloyd_codebook(bits, 128).distortion) << bits;
    EXPECT_LT(coding_distortion(limit, 64), 1.005 * lloyd_codebook(bits, 64).distortion) << bits;
    std::vector<double> grid;
    for (const double level : limit) grid.push_back(std::nearbyint(level / limit.back() * 127) * limit.back() / 127);
    EXPECT_LT(coding_distortion(grid, 0), 1.003 * lloyd_codebook(bits, 0).distortion) << bits;
  }
}

}  // namespace
}  // namespace kvartet
