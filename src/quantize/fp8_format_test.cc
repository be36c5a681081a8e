// FP8 tiles against compression.md 7.3, section 9 and T13.
#include "quantize/fp8_format.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/float8.h"
#include "core/rng.h"

namespace kvartet {
namespace {

constexpr std::size_t kRows = 64;

TileFormat make(Side side, int head_dim, bool calibrated = false) {
  return make_fp8_format({.name = "fp8", .calibrated = calibrated}, side, head_dim).value();
}

std::vector<float> round_trip(const TileFormat& f, const std::vector<float>& rows) {
  const std::size_t dim = static_cast<std::size_t>(f.head_dim);
  std::vector<std::byte> tile(f.tile_bytes);
  EXPECT_TRUE(f.kernels.encode(f, tile.data(), 0, {rows.data(), rows.size() / dim, dim}).ok());
  std::vector<float> out(rows.size());
  f.kernels.decode(f, tile.data(), 0, static_cast<int>(rows.size() / dim), {out.data(), rows.size() / dim, dim});
  return out;
}

TEST(Fp8Format, VectorsOf73) {
  const std::vector<float> row = {0.1F, 1.0625F, 3.3F, 300.0F, 460.0F, 0.001F, 0.0009F, -1e30F};
  const std::vector<float> expected = {0.1015625F, 1.0F, 3.25F, 288.0F, 448.0F, 0.001953125F, 0.0F, -448.0F};
  for (const Side side : {Side::kKey, Side::kValue}) EXPECT_EQ(round_trip(make(side, 8), row), expected);
}

// The encoder without branches is the one of core/float8.h, over all exponents and around every border.
TEST(Fp8Format, EncodesAsTheScalarForm) {
  std::vector<float> row;
  for (int code = 0; code < 0x7e; ++code) {
    const float low = float_from_e4m3(static_cast<std::uint8_t>(code));
    const float high = float_from_e4m3(static_cast<std::uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    for (const float x : {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
      row.push_back(x);
      row.push_back(-x);
    }
  }
  Rng rng(3);
  while (row.size() % 256 != 0 || row.size() < 8192)
    row.push_back(static_cast<float>(rng.normal() * std::exp2(rng.uniform() * 40 - 25)));
  const std::vector<float> out = round_trip(make(Side::kKey, 256), row);
  for (std::size_t i = 0; i < row.size(); ++i) ASSERT_EQ(out[i], float_from_e4m3(e4m3_from_float(row[i]))) << row[i];
}

TEST(Fp8Format, MeanSquaredErrorOf71AndRelativeErrorOf73) {
  Rng rng(1);
  double error = 0;
  std::vector<float> rows(kRows * 128);
  for (int round = 0; round < 20; ++round) {
    for (float& x : rows) x = static_cast<float>(rng.normal());
    const std::vector<float> out = round_trip(make(Side::kValue, 128), rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      error += std::pow(static_cast<double>(out[i]) - static_cast<double>(rows[i]), 2);
      if (std::abs(rows[i]) < 0x1p-6F) continue;
      ASSERT_LE(std::abs(out[i] - rows[i]), std::abs(rows[i]) * 0x1p-4F);
    }
  }
  EXPECT_NEAR(error / (20.0 * static_cast<double>(rows.size())), 7.0e-4, 0.03 * 7.0e-4);
}

// scale=calibrated: the largest magnitude becomes 448, so that biased keys do not saturate.
TEST(Fp8Format, CalibrationKeepsLargeRows73) {
  Rng rng(2);
  std::vector<float> rows(kRows * 64);
  for (float& x : rows) x = static_cast<float>(600.0 + rng.normal());
  const std::vector<float> saturated = round_trip(make(Side::kKey, 64), rows);
  EXPECT_EQ(*std::max_element(saturated.begin(), saturated.end()), 448.0F);
  TileFormat f = make(Side::kKey, 64, true);
  ASSERT_EQ(f.calibration_bytes, sizeof(float));
  const auto scale = std::make_shared<float>(0.0F);
  f.kernels.calibrate(f, {rows.data(), kRows, 64}, reinterpret_cast<std::byte*>(scale.get()));
  EXPECT_FLOAT_EQ(*scale, *std::max_element(rows.begin(), rows.end()) / 448.0F);
  f.calibration = std::shared_ptr<const std::byte>(scale, reinterpret_cast<const std::byte*>(scale.get()));
  const std::vector<float> out = round_trip(f, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(out[i], rows[i], 600.0F / 16.0F);
  // The kernels use the same scale.
  std::vector<std::byte> tile(f.tile_bytes);
  ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {rows.data(), kRows, 64}).ok());
  std::vector<float> q(64);
  for (float& x : q) x = static_cast<float>(rng.normal());
  float logit = 0;
  f.kernels.score(f, {tile.data(), 17, 18, q.data(), 1, &logit, 1});
  double expected = 0;
  for (std::size_t c = 0; c < 64; ++c) expected += static_cast<double>(q[c]) * static_cast<double>(out[17 * 64 + c]);
  EXPECT_NEAR(logit, expected, 1e-5 * 64 * 600);
}

TEST(Fp8Format, BytesOfSection9) {
  EXPECT_EQ(32 * 8 * 2 * make(Side::kKey, 128).live_bytes(1), 65536U);
  EXPECT_EQ(make(Side::kKey, 80).tile_bytes, kRows * 80);
}

}  // namespace
}  // namespace kvartet
