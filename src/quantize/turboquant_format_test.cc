// TurboQuant against compression.md section 3: distortions (3.2), properties of the inner-product variant (3.3), one-hot rows
// (3.4), bytes (3.7) and the tests of 3.8.
#include "quantize/turboquant_format.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "core/rng.h"
#include "quantize/lloyd_codebook.h"
#include "quantize/planar_rows.h"
#include "quantize/rotated_format.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

FormatRequest mse(int bits, Rotation rotation = Rotation::kHadamard) {
  return {.name = "turboquant", .bits = bits, .rotation = rotation, .seed = 1};
}
FormatRequest prod(int bits, std::uint64_t seed = 1) {
  return {.name = "turboquant", .bits = bits, .rotation = Rotation::kHadamard, .residual_signs = true, .seed = seed};
}

TileFormat make(const FormatRequest& request, Side side, int head_dim) {
  return make_turboquant_format(request, side, head_dim).value();
}

double dot(const float* a, const float* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

std::vector<float> unit_rows(std::size_t rows, std::size_t dim, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(rows * dim);
  for (float& v : x) v = static_cast<float>(rng.normal());
  for (std::size_t r = 0; r < rows; ++r) {
    const double length = std::sqrt(dot(&x[r * dim], &x[r * dim], dim));
    for (std::size_t c = 0; c < dim; ++c) x[r * dim + c] = static_cast<float>(x[r * dim + c] / length);
  }
  return x;
}

// Encodes and decodes rows of `dim` channels, a tile at a time.
std::vector<float> round_trip(const TileFormat& format, const std::vector<float>& rows) {
  const std::size_t dim = static_cast<std::size_t>(format.head_dim);
  std::vector<float> out(rows.size());
  for (std::size_t at = 0; at < rows.size(); at += kPlanarRows * dim) {
    const std::size_t count = std::min<std::size_t>(kPlanarRows, rows.size() / dim - at / dim);
    std::vector<std::byte> tile(format.tile_bytes);
    EXPECT_TRUE(format.kernels.encode(format, tile.data(), 0, {&rows[at], count, dim}).ok());
    format.kernels.decode(format, tile.data(), 0, static_cast<int>(count), {&out[at], count, dim});
  }
  return out;
}

double mean_squared_error(const std::vector<float>& a, const std::vector<float>& b, std::size_t dim) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return sum / (static_cast<double>(a.size()) / static_cast<double>(dim));
}

// 3.8 test 1 with the least-squares norm of 3.2, and test 4: E x.x~ = 1 - D.
TEST(TurboQuant, DistortionAndShrinkageOf32) {
  const double expected[] = {0.360, 0.115, 0.0334, 0.00913};
  const double inner[] = {0.640, 0.885, 0.967, 0.991};
  const std::vector<float> rows = unit_rows(4000, 128, 2);
  for (const Rotation rotation : {Rotation::kHadamard, Rotation::kDense}) {
    for (int bits = 1; bits <= 4; ++bits) {
      const std::vector<float> out = round_trip(make(mse(bits, rotation), Side::kValue, 128), rows);
      const double error = mean_squared_error(rows, out, 128);
      EXPECT_NEAR(error, expected[bits - 1], 0.02 * expected[bits - 1]) << bits;
      double product = 0;
      for (std::size_t r = 0; r < 4000; ++r) product += dot(&rows[r * 128], &out[r * 128], 128);
      EXPECT_NEAR(product / 4000, inner[bits - 1], 0.005) << bits;
      EXPECT_NEAR(product / 4000, 1 - error, 0.005) << bits;
    }
  }
}

// 3.2: 5 and 6 bits of the table, and what follows.
TEST(TurboQuant, WiderCodesFollowTheGaussianLimit) {
  const std::vector<float> rows = unit_rows(1000, 128, 3);
  for (int bits = 5; bits <= 8; ++bits) {
    const double limit = lloyd_codebook(bits, 0).distortion;
    const double error = mean_squared_error(rows, round_trip(make(mse(bits), Side::kKey, 128), rows), 128);
    EXPECT_LT(error, 1.02 * limit + 1e-6) << bits;  // f16 norms add 1e-7
    EXPECT_GT(error, 0.88 * limit) << bits;
  }
}

// 3.2's table for short rows: the part of 32 channels uses its exact law.
TEST(TurboQuant, DistortionAt32And64Channels) {
  const std::vector<float> rows32 = unit_rows(8000, 32, 4);
  const std::vector<float> rows64 = unit_rows(8000, 64, 5);
  const double d32[] = {0.353357, 0.111600, 0.032261, 0.008774};
  const double d64[] = {0.358387, 0.114526, 0.033391, 0.009132};
  for (int bits = 1; bits <= 4; ++bits) {  // the least-squares norm may only be better than these
    const double e32 = mean_squared_error(rows32, round_trip(make(mse(bits), Side::kKey, 32), rows32), 32);
    const double e64 = mean_squared_error(rows64, round_trip(make(mse(bits), Side::kKey, 64), rows64), 64);
    EXPECT_LT(e32, 1.02 * d32[bits - 1]) << bits;
    EXPECT_GT(e32, 0.85 * d32[bits - 1]) << bits;
    EXPECT_LT(e64, 1.02 * d64[bits - 1]) << bits;
    EXPECT_GT(e64, 0.90 * d64[bits - 1]) << bits;
  }
}

// 3.8 test 2.
TEST(TurboQuant, ScaleEquivarianceOf38) {
  for (const FormatRequest& request : {mse(3), mse(4), mse(6), prod(3)}) {
    const TileFormat format = make(request, Side::kKey, 64);
    std::vector<float> rows = unit_rows(kPlanarRows, 64, 6);
    const std::vector<float> out = round_trip(format, rows);
    for (float& x : rows) x *= 8;
    const std::vector<float> larger = round_trip(format, rows);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(larger[i], 8 * out[i]) << format.name;
  }
}

// 3.8 test 3.
TEST(TurboQuant, ZerosStayZeroAndNothingIsNan) {
  for (const FormatRequest& request : {mse(1), mse(4), mse(7), prod(1), prod(4)}) {
    const TileFormat format = make(request, Side::kKey, 64);
    const std::vector<float> zeros(64 * 3, 0.0F);
    EXPECT_EQ(round_trip(format, zeros), zeros) << format.name;
    std::vector<float> tiny = unit_rows(3, 64, 7);
    for (float& x : tiny) x *= 1e-30F;
    for (const float x : round_trip(format, tiny)) ASSERT_TRUE(std::isfinite(x)) << format.name;
  }
}

// 3.8 test 7: P = I, coordinates 0.3, -1.2, 0.99, 2.5 (times 1 / sqrt(D)), two bits.
TEST(TurboQuant, ScalarPathOf38) {
  const TileFormat format = make(mse(2, Rotation::kNone), Side::kValue, 128);
  const CodePart& part = format.planar->parts[0];
  const double unit = 1 / std::sqrt(128.0);
  std::vector<float> row(128);
  const double coordinates[] = {0.3, -1.2, 0.99, 2.5};
  double left = 128;
  for (std::size_t i = 0; i < 4; ++i) {
    row[i] = static_cast<float>(coordinates[i] * unit);
    left -= coordinates[i] * coordinates[i];
  }
  for (std::size_t i = 4; i < 128; ++i) row[i] = static_cast<float>(std::sqrt(left / 124) * unit);  // a unit vector
  std::vector<std::byte> tile(format.tile_bytes);
  ASSERT_TRUE(format.kernels.encode(format, tile.data(), 5, {row.data(), 1, 128}).ok());
  const double expected[] = {0.4528, -1.5104, 1.5104, 1.5104};
  for (int c = 0; c < 4; ++c) {
    const unsigned code = planar_code(part, Side::kValue, tile.data(), 5, c);
    EXPECT_NEAR(part.levels.values[code] / unit, expected[c], 0.006) << c;  // levels lie on the int8 grid
  }
}

// 3.4, 3.8 test 9: a one-hot row is spread evenly by one sign-Hadamard pass, and not by a Haar matrix. With the plain norm the
// first would cost (1 - c)^2; the least-squares norm repairs it exactly.
TEST(TurboQuant, OneHotRowsOf34) {
  const double haar[] = {0.360, 0.114, 0.033, 0.0090};
  std::vector<float> rows(128 * 128, 0.0F);
  for (std::size_t c = 0; c < 128; ++c) rows[c * 128 + c] = 1.0F;
  for (int bits = 1; bits <= 4; ++bits) {
    const double plain_expected[] = {0.0408, 0.2605, 0.0595, 0.0033};
    const TileFormat format = make(mse(bits), Side::kValue, 128);
    const CodePart& part = format.planar->parts[0];
    std::vector<std::byte> tile(format.tile_bytes);
    ASSERT_TRUE(format.kernels.encode(format, tile.data(), 0, {rows.data(), 128, 128}).ok());
    const double level = std::abs(part.levels.values[planar_code(part, Side::kValue, tile.data(), 0, 0)]) * std::sqrt(128.0);
    EXPECT_NEAR((1 - level) * (1 - level), plain_expected[bits - 1], 0.05 * plain_expected[bits - 1] + 6e-4)
        << bits;  // int8 grid
    EXPECT_LT(mean_squared_error(rows, round_trip(format, rows), 128), 1e-6) << bits;
    const double dense = mean_squared_error(rows, round_trip(make(mse(bits, Rotation::kDense), Side::kValue, 128), rows), 128);
    EXPECT_NEAR(dense, haar[bits - 1], 0.06 * haar[bits - 1]) << bits;
  }
}

// 3.7 and 3.8 test 10: bytes per row at 128 channels.
TEST(TurboQuant, BytesOf37) {
  const auto row_bytes = [](const FormatRequest& request) { return make(request, Side::kKey, 128).live_bytes(1); };
  EXPECT_EQ(row_bytes(mse(2)), 34U);
  EXPECT_EQ(row_bytes(mse(3)), 50U);
  EXPECT_EQ(row_bytes(mse(4)), 66U);
  EXPECT_EQ(row_bytes(prod(2)), 36U);
  EXPECT_EQ(row_bytes(prod(3)), 52U);
  EXPECT_EQ(row_bytes(prod(4)), 68U);
  FormatRequest outliers = mse(3);  // the paper's "TQ3", with f16 norms: 16 + 36 + 4
  outliers.quarters = 1;
  EXPECT_EQ(row_bytes(outliers), 56U);
  for (const FormatRequest& request : {mse(1), mse(5), mse(8), prod(1), outliers}) {
    const TileFormat format = make(request, Side::kKey, 128);
    EXPECT_EQ(format.tile_bytes, format.live_bytes(format.tile_rows)) << format.name;
  }
}

// 3.7 in general: ceil(D b / 8) and a norm; for prod ceil(D (b - 1) / 8), ceil(D / 8) and two norms (one at b = 1: no codes).
// The table's ratios.
TEST(TurboQuant, ByteFormulasAndRatiosOf37) {
  for (const int dim : {32, 64, 96, 128, 256}) {
    const std::size_t d = static_cast<std::size_t>(dim);
    for (int bits = 1; bits <= 8; ++bits) {
      const std::size_t b = static_cast<std::size_t>(bits);
      for (const Side side : {Side::kKey, Side::kValue}) {
        EXPECT_EQ(make(mse(bits), side, dim).live_bytes(1), (d * b + 7) / 8 + 2) << bits << " bits, " << dim << " channels";
      }
      const std::size_t norms = bits > 1 ? 4 : 2;
      EXPECT_EQ(make(prod(bits), Side::kKey, dim).live_bytes(1), (d * (b - 1) + 7) / 8 + (d + 7) / 8 + norms)
          << bits << " " << dim;
    }
  }
  const auto ratio = [](const FormatRequest& request) {
    return 256.0 / static_cast<double>(make(request, Side::kKey, 128).live_bytes(1));
  };
  EXPECT_NEAR(ratio(mse(2)), 7.53, 5e-3);
  EXPECT_NEAR(ratio(mse(3)), 5.12, 5e-3);
  EXPECT_NEAR(ratio(mse(4)), 3.88, 5e-3);
  EXPECT_NEAR(ratio(prod(2)), 7.11, 5e-3);
  EXPECT_NEAR(ratio(prod(3)), 4.92, 5e-3);
  EXPECT_NEAR(ratio(prod(4)), 3.76, 6e-3);
}

// 3.5: 32 channels at 3 bits and 96 at 2 are 2.25 bits, not 2.5; 64 and 64 are 2.5. Each part has a norm of its own.
TEST(TurboQuant, FractionalRatesOf35) {
  const auto code_bits = [](int bits, int quarters) {
    FormatRequest request = mse(bits);
    request.quarters = quarters;
    return (static_cast<double>(make(request, Side::kKey, 128).live_bytes(1)) - 4) * 8 / 128;
  };
  EXPECT_EQ(code_bits(2, 1), 2.25);
  EXPECT_EQ(code_bits(2, 2), 2.5);
  EXPECT_EQ(code_bits(3, 1), 3.25);
  EXPECT_EQ(code_bits(3, 2), 3.5);
}

// Section 9: bytes of one token, 32 layers x 8 heads, both sides.
TEST(TurboQuant, BytesPerTokenOfSection9) {
  const auto per_token = [](const FormatRequest& request) { return 32 * 8 * 2 * make(request, Side::kKey, 128).live_bytes(1); };
  EXPECT_EQ(per_token(mse(4)), 33792U);
  EXPECT_EQ(per_token(mse(3)), 25600U);
  EXPECT_EQ(per_token(prod(4)), 34816U);
  EXPECT_EQ(per_token(prod(3)), 26624U);
}

TEST(TurboQuant, RefusesWhatMakesNoSense) {
  const auto message = [](FormatRequest request, Side side, int head_dim) {
    const Result<TileFormat> made = make_turboquant_format(request, side, head_dim);
    return made.ok() ? std::string() : made.status().message();
  };
  EXPECT_NE(message(mse(9), Side::kKey, 64), "");
  EXPECT_NE(message(mse(0), Side::kKey, 64), "");
  EXPECT_NE(message(mse(4), Side::kKey, 80), "");
  EXPECT_NE(message(prod(3), Side::kValue, 64), "");
  FormatRequest quarter = mse(3);
  quarter.quarters = 1;
  EXPECT_NE(message(quarter, Side::kKey, 64).find("3.5"), std::string::npos);
  EXPECT_EQ(message(quarter, Side::kKey, 128), "");
  quarter.residual_signs = true;
  EXPECT_NE(message(quarter, Side::kKey, 128), "");
}

// ---- 3.5: fractional rates

// The channels with the most energy go into the part with one bit more, and rows come back in their own order.
TEST(TurboQuant, OutlierChannelsGetTheBitMore35) {
  FormatRequest request = mse(2);
  request.quarters = 2;
  TileFormat format = make(request, Side::kKey, 64);
  std::vector<float> rows = unit_rows(kPlanarRows, 64, 8);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] *= i % 2 == 0 ? 10.0F : 0.5F;  // even channels are large
  const double before = mean_squared_error(rows, round_trip(format, rows), 64);
  ASSERT_EQ(format.calibration_bytes, 128U);
  auto order = std::make_shared<std::vector<std::uint16_t>>(64);
  std::byte* const bytes = reinterpret_cast<std::byte*>(order->data());
  format.kernels.calibrate(format, {rows.data(), kPlanarRows, 64}, bytes);
  for (std::size_t c = 0; c < 32; ++c) {
    EXPECT_EQ((*order)[c], 2 * c);
    EXPECT_EQ((*order)[32 + c], 2 * c + 1);
  }
  format.calibration = std::shared_ptr<const std::byte>(order, bytes);
  const double after = mean_squared_error(rows, round_trip(format, rows), 64);
  EXPECT_LT(after, before / 2);
  EXPECT_EQ(format.live_bytes(1), (32 * 3 + 32 * 2) / 8 + 4U);
}

// ---- 3.3: the inner-product variant

struct ProductStatistics {
  double bias = 0;            // mean of estimate - q.x
  double standard_error = 0;  // of the bias
  double variance = 0;        // of the estimates, around q.x
  double expected_variance = 0;
};

// Over draws of rotation and sketch; `correlated`: sketch = sqrt(D) P, the mistake of 3.8 test 6.
ProductStatistics product_statistics(int bits, const std::vector<float>& x, const std::vector<float>& y, bool correlated,
                                     int draws) {
  const std::size_t dim = x.size();
  double sum = 0;
  double squares = 0;
  double expected = 0;
  const double exact = dot(x.data(), y.data(), dim);
  for (int draw = 0; draw < draws; ++draw) {
    TileFormat format = make(prod(bits, static_cast<std::uint64_t>(draw) + 1), Side::kKey, static_cast<int>(dim));
    if (correlated) {  // our S applies to the rotated error, where sqrt(D) P is sqrt(D) times the identity
      auto tables = std::make_shared<std::vector<float>>(format.table_bytes / sizeof(float));
      std::memcpy(tables->data(), format.tables.get(), format.table_bytes);
      float* const sketch = tables->data() + format.rotated->table_floats();
      std::fill_n(sketch, dim * dim, 0.0F);
      for (std::size_t c = 0; c < dim; ++c) sketch[c * dim + c] = std::sqrt(static_cast<float>(dim));
      format.tables = std::shared_ptr<const std::byte>(tables, reinterpret_cast<const std::byte*>(tables->data()));
    }
    std::vector<std::byte> tile(format.tile_bytes);
    EXPECT_TRUE(format.kernels.encode(format, tile.data(), 0, {x.data(), 1, dim}).ok());
    std::vector<float> q(2 * dim);
    std::copy(y.begin(), y.end(), q.begin());
    format.kernels.prepare_queries(format, q.data(), 1);
    float logit = 0;
    format.kernels.score(format, {tile.data(), 0, 1, q.data(), 1, &logit, 1});
    const double off = static_cast<double>(logit) - exact;
    sum += off;
    squares += off * off;
    // (gam^2 / D) ((pi / 2) |y|^2 - (rho^ . y)^2), in the rotated basis.
    std::vector<float> rho(2 * dim);
    std::copy(x.begin(), x.end(), rho.begin());
    format.kernels.prepare_queries(format, rho.data(), 1);
    std::vector<float> coarse(dim, 0.0F);
    if (bits > 1) decode_planar_part(format.planar->parts[0], Side::kKey, tile.data(), 0, coarse.data());
    for (std::size_t c = 0; c < dim; ++c) rho[c] -= coarse[c];
    const double overlap = dot(rho.data(), q.data(), dim);
    expected += (std::numbers::pi / 2 * dot(rho.data(), rho.data(), dim) * dot(q.data(), q.data(), dim) - overlap * overlap) /
                static_cast<double>(dim);
  }
  ProductStatistics statistics;
  statistics.bias = sum / draws;
  statistics.variance = squares / draws;
  statistics.expected_variance = expected / draws;
  statistics.standard_error = std::sqrt(statistics.variance / draws);
  return statistics;
}

// Unit x and y with y.x = 0.5.
std::pair<std::vector<float>, std::vector<float>> correlated_pair(std::size_t dim) {
  const std::vector<float> x = unit_rows(1, dim, 9);
  std::vector<float> z = unit_rows(1, dim, 10);
  const double overlap = dot(x.data(), z.data(), dim);
  for (std::size_t c = 0; c < dim; ++c) z[c] -= static_cast<float>(overlap) * x[c];
  const double length = std::sqrt(dot(z.data(), z.data(), dim));
  std::vector<float> y(dim);
  for (std::size_t c = 0; c < dim; ++c) y[c] = static_cast<float>(0.5 * x[c] + std::sqrt(0.75) * z[c] / length);
  return {x, y};
}

// 3.8 test 5, and test 6: it must catch a sketch that depends on the rotation.
TEST(TurboQuantProd, UnbiasedWithTheExactVariance38) {
  const auto [x, y] = correlated_pair(32);
  for (const int bits : {1, 3}) {
    const ProductStatistics s = product_statistics(bits, x, y, false, 2000);
    EXPECT_LT(std::abs(s.bias), 4 * s.standard_error) << bits;
    EXPECT_NEAR(s.variance, s.expected_variance, 0.1 * s.expected_variance) << bits;
  }
  const ProductStatistics s = product_statistics(2, x, y, true, 1000);
  EXPECT_GT(std::abs(s.bias), 4 * s.standard_error);
  EXPECT_LT(s.bias, 0);
}

// 3.3's table: error^2 x D for independent unit y, and 3.2's bound (sqrt(3) pi^2 / D) 4^-b.
TEST(TurboQuantProd, ErrorOfIndependentQueries33) {
  const double expected[] = {1.58, 0.570, 0.176, 0.0529};
  const std::vector<float> rows = unit_rows(kPlanarRows, 128, 11);
  const std::vector<float> queries = unit_rows(64, 128, 12);
  for (int bits = 1; bits <= 4; ++bits) {
    double sum = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      const TileFormat format = make(prod(bits, seed), Side::kKey, 128);
      std::vector<std::byte> tile(format.tile_bytes);
      ASSERT_TRUE(format.kernels.encode(format, tile.data(), 0, {rows.data(), kPlanarRows, 128}).ok());
      std::vector<float> q(std::size_t{64} * 256);
      std::copy(queries.begin(), queries.end(), q.begin());
      format.kernels.prepare_queries(format, q.data(), 64);
      std::vector<float> logits(64 * kPlanarRows);
      format.kernels.score(format, {tile.data(), 0, kPlanarRows, q.data(), 64, logits.data(), kPlanarRows});
      for (std::size_t k = 0; k < 64; ++k) {
        for (std::size_t r = 0; r < kPlanarRows; ++r) {
          sum += std::pow(logits[k * kPlanarRows + r] - dot(&queries[k * 128], &rows[r * 128], 128), 2);
        }
      }
    }
    EXPECT_NEAR(sum / (8 * 64 * kPlanarRows) * 128, expected[bits - 1], 0.06 * expected[bits - 1]) << bits;
    EXPECT_LT(sum / (8 * 64 * kPlanarRows) * 128, std::sqrt(3.0) * std::pow(std::numbers::pi, 2) * std::pow(4.0, -bits));  // 3.2
  }
}

// finish_output turns weighted sums of rotated rows into those of the rows (3.8 test 8, on the value side).
TEST(TurboQuant, FinishedOutputIsTheWeightedSum38) {
  FormatRequest outliers = mse(2);
  outliers.quarters = 2;
  for (const FormatRequest& request : {mse(4), mse(3, Rotation::kDense), outliers}) {
    const TileFormat format = make(request, Side::kValue, 64);
    const std::vector<float> rows = unit_rows(kPlanarRows, 64, 13);
    const std::vector<float> decoded = round_trip(format, rows);
    std::vector<std::byte> tile(format.tile_bytes);
    ASSERT_TRUE(format.kernels.encode(format, tile.data(), 0, {rows.data(), kPlanarRows, 64}).ok());
    Rng rng(14);
    std::vector<float> weights(kPlanarRows);
    for (float& w : weights) w = static_cast<float>(rng.uniform());
    std::vector<float> out(64, 0.0F);
    format.kernels.accumulate(format, {tile.data(), 0, kPlanarRows, weights.data(), kPlanarRows, 1, out.data()});
    format.kernels.finish_output(format, out.data(), 1);
    for (std::size_t c = 0; c < 64; ++c) {
      double expected = 0;
      for (std::size_t r = 0; r < kPlanarRows; ++r) expected += static_cast<double>(weights[r]) * decoded[r * 64 + c];
      // Sums of 128 weights of up to 1; kernels in integers round those to 2^-16 (tile_kernels_test.cc).
      EXPECT_NEAR(out[c], expected, uses_extension(SimdExtension::kVnni) ? 1e-4 : 2e-5) << format.name;
    }
  }
}

}  // namespace
}  // namespace kvartet
