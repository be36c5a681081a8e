// q8_0 against compression.md 7.1, T13.
#include "quantize/q8_0_format.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "core/float16.h"
#include "core/rng.h"

namespace kvartet {
namespace {

constexpr int kRows = 64;

TileFormat make(Side side, int head_dim) { return make_q8_0_format({"q8_0"}, side, head_dim).value(); }

// Codes of one row of a value tile (row-major) written at row 0.
std::vector<int> codes_of(const std::vector<float>& row) {
  const TileFormat f = make(Side::kValue, static_cast<int>(row.size()));
  std::vector<std::byte> tile(f.tile_bytes);
  EXPECT_TRUE(f.kernels.encode(f, tile.data(), 0, {row.data(), 1, row.size()}).ok());
  std::vector<int> codes;
  for (std::size_t i = 0; i < row.size(); ++i) codes.push_back(static_cast<std::int8_t>(tile[i]));
  return codes;
}

TEST(Q8_0Format, ExampleOf71) {
  std::vector<float> row(32, 0.0F);
  const float block[] = {1.0F, -0.5F, 0.26F, 0.0F};
  std::copy(std::begin(block), std::end(block), row.begin());
  const std::vector<int> codes = codes_of(row);
  EXPECT_EQ(std::vector<int>(codes.begin(), codes.begin() + 4), (std::vector<int>{127, -64, 33, 0}));
}

TEST(Q8_0Format, HalvesGoAwayFromZero) {
  std::vector<float> row(32, 0.0F);
  row[0] = 127.0F;  // d = 1
  row[1] = 0.5F;
  row[2] = -0.5F;
  row[3] = 1.5F;
  row[4] = 2.5F;
  row[5] = -2.5F;
  row[6] = 0.49999997F;
  row[7] = -127.0F;
  const std::vector<int> codes = codes_of(row);
  EXPECT_EQ(std::vector<int>(codes.begin(), codes.begin() + 8), (std::vector<int>{127, 1, -1, 2, 3, -3, 0, -127}));
}

TEST(Q8_0Format, CodesAndScalesAreThoseOfTheFormula) {
  Rng rng(9);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> row(32);
    const double size = std::exp2(rng.uniform() * 40 - 30);  // from subnormal scales to large ones
    for (float& x : row) x = static_cast<float>(rng.normal() * size);
    float largest = 0.0F;
    for (const float x : row) largest = std::max(largest, std::abs(x));
    const float d = float_from_f16(f16_from_float(largest / 127.0F));
    const std::vector<int> codes = codes_of(row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float expected = d == 0.0F ? 0.0F : std::clamp(std::round(row[i] / d), -127.0F, 127.0F);
      ASSERT_EQ(codes[i], static_cast<int>(expected)) << row[i] << " / " << d;
    }
  }
}

TEST(Q8_0Format, MeanSquaredErrorOf71) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const TileFormat f = make(side, 128);
    Rng rng(1);
    double error = 0.0;
    std::size_t count = 0;
    std::vector<std::byte> tile(f.tile_bytes);
    std::vector<float> x(kRows * 128);
    std::vector<float> out(x.size());
    for (int round = 0; round < 40; ++round) {
      for (float& v : x) v = static_cast<float>(rng.normal());
      ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {x.data(), kRows, 128}).ok());
      f.kernels.decode(f, tile.data(), 0, kRows, {out.data(), kRows, 128});
      for (std::size_t i = 0; i < x.size(); ++i) error += std::pow(static_cast<double>(out[i]) - x[i], 2);
      count += x.size();
    }
    EXPECT_NEAR(error / static_cast<double>(count), 2.86e-5, 0.02 * 2.86e-5);
  }
}

// Both sides use the same blocks along the channels of a row (7.1): the same rows decode to the same numbers.
TEST(Q8_0Format, KeysAndValuesHoldTheSameNumbers) {
  const TileFormat keys = make(Side::kKey, 96);
  const TileFormat values = make(Side::kValue, 96);
  Rng rng(2);
  std::vector<float> x(kRows * 96);
  for (float& v : x) v = static_cast<float>(rng.normal());
  std::vector<std::byte> key_tile(keys.tile_bytes);
  std::vector<std::byte> value_tile(values.tile_bytes);
  ASSERT_TRUE(keys.kernels.encode(keys, key_tile.data(), 0, {x.data(), kRows, 96}).ok());
  ASSERT_TRUE(values.kernels.encode(values, value_tile.data(), 0, {x.data(), kRows, 96}).ok());
  std::vector<float> a(x.size());
  std::vector<float> b(x.size());
  keys.kernels.decode(keys, key_tile.data(), 0, kRows, {a.data(), kRows, 96});
  values.kernels.decode(values, value_tile.data(), 0, kRows, {b.data(), kRows, 96});
  EXPECT_EQ(a, b);
}

// Eviction reuses slots: writing one row leaves its neighbours alone.
TEST(Q8_0Format, OverwritingARowLeavesTheOthers) {
  const TileFormat keys = make(Side::kKey, 32);
  std::vector<float> x(kRows * 32, 1.0F);
  std::vector<std::byte> tile(keys.tile_bytes);
  ASSERT_TRUE(keys.kernels.encode(keys, tile.data(), 0, {x.data(), kRows, 32}).ok());
  const std::vector<float> row(32, -2.0F);
  ASSERT_TRUE(keys.kernels.encode(keys, tile.data(), 17, {row.data(), 1, 32}).ok());
  std::vector<float> out(x.size());
  keys.kernels.decode(keys, tile.data(), 0, kRows, {out.data(), kRows, 32});
  for (int r = 0; r < kRows; ++r) EXPECT_NEAR(out[static_cast<std::size_t>(r * 32 + 5)], r == 17 ? -2.0F : 1.0F, 0.01F) << r;
}

}  // namespace
}  // namespace kvartet
