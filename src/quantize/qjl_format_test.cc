// QJL against compression.md 3.9 and the orthogonal sketch of 3.3.
#include "quantize/qjl_format.h"

#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "core/rng.h"

namespace kvartet {
namespace {

std::vector<float> unit_rows(std::size_t rows, std::size_t dim, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(rows * dim);
  for (float& v : x) v = static_cast<float>(rng.normal());
  for (std::size_t r = 0; r < rows; ++r) {
    double length = 0;
    for (std::size_t c = 0; c < dim; ++c) length += std::pow(static_cast<double>(x[r * dim + c]), 2);
    for (std::size_t c = 0; c < dim; ++c) x[r * dim + c] /= static_cast<float>(std::sqrt(length));
  }
  return x;
}

// Unbiased, and with a sketch of one orthogonal block m * MSE = 0.57 for independent unit pairs (a Gaussian one: 1.53).
TEST(QjlFormat, UnbiasedWithTheErrorOf33) {
  constexpr std::size_t kDim = 128;
  constexpr std::size_t kRows = 128;
  constexpr int kDraws = 6;
  const std::vector<float> keys = unit_rows(kRows, kDim, 1);
  const std::vector<float> queries = unit_rows(40, kDim, 2);
  double sum = 0;
  double squares = 0;
  for (int draw = 1; draw <= kDraws; ++draw) {
    const TileFormat f =
        make_qjl_format({.name = "qjl", .seed = static_cast<std::uint64_t>(draw), .sketch = 128}, Side::kKey, kDim).value();
    std::vector<std::byte> tile(f.tile_bytes);
    ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {keys.data(), kRows, kDim}).ok());
    std::vector<float> q = queries;
    f.kernels.prepare_queries(f, q.data(), 40);
    std::vector<float> logits(40 * kRows);
    f.kernels.score(f, {tile.data(), 0, kRows, q.data(), 40, logits.data(), kRows});
    for (std::size_t k = 0; k < 40; ++k) {
      for (std::size_t r = 0; r < kRows; ++r) {
        double exact = 0;
        for (std::size_t c = 0; c < kDim; ++c) exact += static_cast<double>(queries[k * kDim + c]) * keys[r * kDim + c];
        sum += logits[k * kRows + r] - exact;
        squares += std::pow(logits[k * kRows + r] - exact, 2);
      }
    }
  }
  const double count = kDraws * 40.0 * kRows;
  EXPECT_LT(std::abs(sum / count), 4 * std::sqrt(squares / count / count) + 1e-4);
  EXPECT_NEAR(squares / count * 128, 0.57, 0.05);
}

// 3.3's orthogonal sketch at cosine 0.8: m * MSE = 0.24 (a Gaussian one: pi / 2 - 0.64 = 0.93).
TEST(QjlFormat, ErrorOfCorrelatedPairs33) {
  constexpr std::size_t kDim = 128;
  constexpr std::size_t kRows = 128;
  const std::vector<float> keys = unit_rows(kRows, kDim, 5);
  double squares = 0;
  for (std::uint64_t draw = 1; draw <= 16; ++draw) {
    std::vector<float> q = unit_rows(kRows, kDim, 100 + draw);
    for (std::size_t r = 0; r < kRows; ++r) {
      double overlap = 0;
      for (std::size_t c = 0; c < kDim; ++c) overlap += static_cast<double>(q[r * kDim + c]) * keys[r * kDim + c];
      const double length = std::sqrt(1 - overlap * overlap);
      for (std::size_t c = 0; c < kDim; ++c) {
        const double across = (q[r * kDim + c] - overlap * keys[r * kDim + c]) / length;
        q[r * kDim + c] = static_cast<float>(0.8 * keys[r * kDim + c] + 0.6 * across);
      }
    }
    const TileFormat f = make_qjl_format({.name = "qjl", .seed = draw, .sketch = 128}, Side::kKey, kDim).value();
    std::vector<std::byte> tile(f.tile_bytes);
    ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {keys.data(), kRows, kDim}).ok());
    f.kernels.prepare_queries(f, q.data(), kRows);
    std::vector<float> logits(kRows * kRows);
    f.kernels.score(f, {tile.data(), 0, kRows, q.data(), kRows, logits.data(), kRows});
    for (std::size_t r = 0; r < kRows; ++r) squares += std::pow(logits[r * kRows + r] - 0.8, 2);
  }
  EXPECT_NEAR(squares / (16 * kRows) * 128, 0.24, 0.03);
}

// 3.9: a Gaussian sketch has the variance (|k|^2 / m) ((pi / 2) |q|^2 - (k^ . q)^2); the orthogonal one stays below.
TEST(QjlFormat, MoreSignsLessErrorThanTheFormulaOf39) {
  constexpr std::size_t kDim = 64;
  const std::vector<float> keys = unit_rows(128, kDim, 3);
  const std::vector<float> queries = unit_rows(20, kDim, 4);
  for (const int sketch : {32, 64, 256, 512}) {
    const TileFormat f = make_qjl_format({.name = "qjl", .seed = 1, .sketch = sketch}, Side::kKey, kDim).value();
    EXPECT_EQ(f.live_bytes(1), static_cast<std::size_t>(sketch) / 8 + 2);
    std::vector<std::byte> tile(f.tile_bytes);
    ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {keys.data(), 128, kDim}).ok());
    std::vector<float> q(20 * std::max<std::size_t>(kDim, static_cast<std::size_t>(sketch)));
    std::copy(queries.begin(), queries.end(), q.begin());
    f.kernels.prepare_queries(f, q.data(), 20);
    std::vector<float> logits(20 * 128);
    f.kernels.score(f, {tile.data(), 0, 128, q.data(), 20, logits.data(), 128});
    double error = 0;
    double formula = 0;
    for (std::size_t k = 0; k < 20; ++k) {
      for (std::size_t r = 0; r < 128; ++r) {
        double exact = 0;
        for (std::size_t c = 0; c < kDim; ++c) exact += static_cast<double>(queries[k * kDim + c]) * keys[r * kDim + c];
        error += std::pow(logits[k * 128 + r] - exact, 2);
        formula += (std::numbers::pi / 2 - exact * exact) / sketch;
      }
    }
    EXPECT_LT(error, 1.05 * formula) << sketch;
    EXPECT_GT(error, 0.2 * formula) << sketch;
  }
}

TEST(QjlFormat, RefusesValuesAndOddSketches) {
  EXPECT_FALSE(make_qjl_format({.name = "qjl", .sketch = 256}, Side::kValue, 64).ok());
  EXPECT_FALSE(make_qjl_format({.name = "qjl", .sketch = 100}, Side::kKey, 64).ok());
  EXPECT_FALSE(make_qjl_format({.name = "qjl", .sketch = 2048}, Side::kKey, 64).ok());
}

}  // namespace
}  // namespace kvartet
