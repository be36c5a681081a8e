// Rotations: orthogonal, undone by their inverse, and without effect on logits (compression.md 3.4, 7.2).
#include "quantize/row_rotation.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "core/normals_fixture.h"
#include "core/rng.h"

namespace kvartet {
namespace {

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

class RowRotation : public testing::TestWithParam<std::tuple<Rotation, int>> {
 protected:
  RowRotation() : table_(rotation_floats(kind(), dim())) { fill_rotation(kind(), dim(), 1, 0, table_.data()); }
  Rotation kind() const { return std::get<0>(GetParam()); }
  int dim() const { return std::get<1>(GetParam()); }
  std::vector<float> turned(std::vector<float> x) const {
    rotate(kind(), dim(), table_.data(), x.data());
    return x;
  }
  std::vector<float> table_;
};

TEST_P(RowRotation, IsOrthogonal34) {
  const std::size_t n = static_cast<std::size_t>(dim());
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> x = normals(n, seed);
    std::vector<float> y = turned(x);
    EXPECT_NEAR(dot(y, y) / dot(x, x), 1.0, 1e-5);
    rotate_back(kind(), dim(), table_.data(), y.data());
    for (std::size_t c = 0; c < n; ++c) ASSERT_NEAR(y[c], x[c], 1e-5);
  }
}

TEST_P(RowRotation, LeavesLogitsAlone72) {
  const std::size_t n = static_cast<std::size_t>(dim());
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> k = normals(n, 2 * seed + 100);
    const std::vector<float> q = normals(n, 2 * seed + 101);
    EXPECT_NEAR(dot(turned(q), turned(k)), dot(q, k), 1e-5 * std::sqrt(dot(q, q) * dot(k, k)));
  }
}

TEST_P(RowRotation, TheSeedDecides) {
  std::vector<float> again(table_.size());
  fill_rotation(kind(), dim(), 1, 0, again.data());
  EXPECT_EQ(again, table_);
  fill_rotation(kind(), dim(), 2, 0, again.data());
  EXPECT_NE(again, table_);
  fill_rotation(kind(), dim(), 1, 1, again.data());
  EXPECT_NE(again, table_);
}

INSTANTIATE_TEST_SUITE_P(All, RowRotation,
                         testing::Combine(testing::Values(Rotation::kHadamard, Rotation::kDense),
                                          testing::Values(32, 64, 96, 128)));

// Sylvester's matrix: y_r = sum over c of (-1)^popcount(r & c) x_c / sqrt(D).
TEST(HadamardRotation, IsSylvestersMatrixWithoutSigns) {
  std::vector<float> ones(8);
  fill_rotation(Rotation::kHadamard, 8, 0, 0, ones.data());
  EXPECT_EQ(ones, std::vector<float>(8, 1.0F));
  std::vector<float> x = normals(8, 5);
  std::vector<float> y = x;
  rotate(Rotation::kHadamard, 8, ones.data(), y.data());
  for (unsigned r = 0; r < 8; ++r) {
    double expected = 0;
    for (unsigned c = 0; c < 8; ++c) expected += __builtin_popcount(r & c) % 2 == 0 ? x[c] : -x[c];
    EXPECT_NEAR(y[r], expected / std::sqrt(8.0), 1e-6);
  }
}

// 3.1, 3.2: a coordinate t of a dense matrix's rows follows f(t) = Gamma(D/2) / (sqrt(pi) Gamma((D-1)/2)) (1 - t^2)^((D-3)/2),
// and its diagonal has no preferred sign (a QR decomposition without the signs of R has one).
TEST(DenseRotation, CoordinatesFollowTheLawOf31) {
  constexpr int kDim = 32;
  constexpr int kMatrices = 40;
  double fourth = 0;
  double diagonal = 0;
  int inside = 0;
  const double edge = 1 / std::sqrt(static_cast<double>(kDim));
  std::vector<float> matrix(kDim * kDim);
  for (std::uint64_t seed = 1; seed <= kMatrices; ++seed) {
    fill_rotation(Rotation::kDense, kDim, seed, 0, matrix.data());
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      const double t = static_cast<double>(matrix[i]);
      fourth += t * t * t * t;
      inside += std::abs(t) < edge ? 1 : 0;
      diagonal += i % (kDim + 1) == 0 ? t : 0;
    }
  }
  constexpr double kCount = kMatrices * kDim * kDim;
  EXPECT_NEAR(fourth / kCount, 3.0 / (kDim * (kDim + 2)), 0.06 * 3.0 / (kDim * (kDim + 2)));
  EXPECT_LT(std::abs(diagonal) / (kMatrices * kDim), 4 * edge / std::sqrt(kMatrices * kDim));
  constexpr int kSteps = 1000;  // the law's probability of |t| < edge, by the midpoint rule
  double expected = 0;
  for (int i = 0; i < kSteps; ++i) expected += std::pow(1 - std::pow(edge * (i + 0.5) / kSteps, 2), (kDim - 3) / 2.0);
  expected *= 2 * edge / kSteps * std::exp(std::lgamma(kDim / 2.0) - std::lgamma((kDim - 1) / 2.0)) / std::sqrt(M_PI);
  EXPECT_NEAR(inside / kCount, expected, 0.01);
}

// 3.4: the same matrix from the same seed on every platform.
TEST(DenseRotation, MatrixOfSeedOneHasItsHash34) {
  std::vector<float> matrix(64 * 64);
  fill_rotation(Rotation::kDense, 64, 1, 0, matrix.data());
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a over the bits
  for (const float x : matrix) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((bits >> shift) & 0xffU)) * 0x100000001b3ULL;
  }
  EXPECT_EQ(hash, 0x67d8ebc336eefaf1ULL);
}

// 3.4: the signs of seed 1 are part of every stored cache: they must not change from platform to platform.
TEST(HadamardRotation, SignsOfSeedOne) {
  std::vector<float> signs(64);
  fill_rotation(Rotation::kHadamard, 64, 1, 0, signs.data());
  const Rng rng(1, 0);
  int negative = 0;
  for (std::size_t c = 0; c < 64; ++c) {
    EXPECT_EQ(signs[c] < 0, (rng.at(c) >> 63) != 0);
    negative += signs[c] < 0 ? 1 : 0;
  }
  EXPECT_GT(negative, 16);
  EXPECT_LT(negative, 48);
}

}  // namespace
}  // namespace kvartet
