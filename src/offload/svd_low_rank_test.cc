// T-RANK and T-TRUNC of offloading.md 11, and the eigensolver against its definition.
#include "offload/svd_low_rank.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/normals_fixture.h"

namespace kvartet {
namespace {

double relative_error(const std::vector<float>& k, const LowRank& low, std::size_t cols) {
  const auto r = static_cast<std::size_t>(low.rank);
  double error = 0;
  double norm = 0;
  for (std::size_t t = 0; t < k.size() / cols; ++t) {
    for (std::size_t j = 0; j < cols; ++j) {
      double x = 0;
      for (std::size_t i = 0; i < r; ++i) x += static_cast<double>(low.a[t * r + i]) * low.b[i * cols + j];
      error += (x - k[t * cols + j]) * (x - k[t * cols + j]);
      norm += static_cast<double>(k[t * cols + j]) * k[t * cols + j];
    }
  }
  return std::sqrt(error / norm);
}

TEST(SymmetricEigen, DefinitionHolds) {
  for (const int size : {1, 2, 3, 8, 33, 100}) {
    const auto n = static_cast<std::size_t>(size);
    const std::vector<float> x = normals(n * n, n);
    std::vector<double> a(n * n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) a[i * n + j] = static_cast<double>(x[i * n + j]) + x[j * n + i];
    const SymmetricEigen eigen = symmetric_eigen(a, size);
    for (std::size_t k = 0; k < n; ++k) {
      if (k > 0) {
        EXPECT_LE(eigen.values[k], eigen.values[k - 1]);
      }
      for (std::size_t i = 0; i < n; ++i) {
        double product = 0;
        for (std::size_t j = 0; j < n; ++j) product += a[i * n + j] * eigen.vectors[k * n + j];
        EXPECT_NEAR(product, eigen.values[k] * eigen.vectors[k * n + i], 1e-9 * static_cast<double>(n));
      }
      for (std::size_t l = 0; l <= k; ++l) {
        double dot = 0;
        for (std::size_t j = 0; j < n; ++j) dot += eigen.vectors[k * n + j] * eigen.vectors[l * n + j];
        EXPECT_NEAR(dot, k == l ? 1 : 0, 1e-10);
      }
    }
  }
}

TEST(SymmetricEigen, DiagonalAndRepeatedValues) {
  std::vector<double> a(36, 0.0);
  for (std::size_t i = 0; i < 6; ++i) a[i * 7] = i < 3 ? 2 : -1;
  const SymmetricEigen eigen = symmetric_eigen(a, 6);
  EXPECT_EQ(eigen.values, (std::vector<double>{2, 2, 2, -1, -1, -1}));
}

TEST(LowRankKeys, TRank) {
  const std::vector<float> k = normals(300 * 96, 1);
  EXPECT_LT(relative_error(k, factorize({k.data(), 300, 96}, 96), 96), 1e-4);
  const std::vector<float> few = normals(40 * 96, 2);  // fewer tokens than channels
  EXPECT_LT(relative_error(few, factorize({few.data(), 40, 96}, 40), 96), 1e-4);
}

TEST(LowRankKeys, TTrunc) {
  const std::vector<float> k = normals(400 * 64, 3);
  for (const int rank : {1, 10, 40, 63}) {
    const LowRank low = factorize({k.data(), 400, 64}, rank);
    double tail = 0;
    double total = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      total += low.squares[i];
      if (static_cast<int>(i) >= rank) tail += low.squares[i];
    }
    EXPECT_NEAR(relative_error(k, low, 64), std::sqrt(tail / total), 1e-3);
  }
  // Keys of exact rank 40.
  const std::vector<float> a = normals(400 * 40, 4);
  const std::vector<float> b = normals(40 * 64, 5);
  std::vector<float> exact(400 * 64, 0.0F);
  for (std::size_t t = 0; t < 400; ++t)
    for (std::size_t i = 0; i < 40; ++i)
      for (std::size_t j = 0; j < 64; ++j) exact[t * 64 + j] += a[t * 40 + i] * b[i * 64 + j];
  EXPECT_LT(relative_error(exact, factorize({exact.data(), 400, 64}, 40), 64), 1e-5);
}

// T-JOINT: heads are columns of one factorization; swapping them swaps B's columns and leaves A as it is, up to sign.
TEST(LowRankKeys, TJoint) {
  const std::vector<float> k = normals(200 * 32, 6);
  std::vector<float> swapped(k.size());
  for (std::size_t t = 0; t < 200; ++t)
    for (std::size_t j = 0; j < 32; ++j) swapped[t * 32 + j] = k[t * 32 + (j + 16) % 32];
  const LowRank one = factorize({k.data(), 200, 32}, 5);
  const LowRank two = factorize({swapped.data(), 200, 32}, 5);
  for (std::size_t i = 0; i < 200 * 5; ++i) EXPECT_NEAR(std::abs(one.a[i]), std::abs(two.a[i]), 1e-3);
}

}  // namespace
}  // namespace kvartet
