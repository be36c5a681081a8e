// q3_0 against the formula of quantize/q3_0_format.h, which has no source beyond this project; rotation against
// compression.md 7.2.
#include "quantize/q3_0_format.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/float16.h"
#include "core/rng.h"
#include "quantize/planar_rows.h"

namespace kvartet {
namespace {

constexpr std::size_t kBlock = 32;

TileFormat make(Side side, int head_dim, Rotation rotation = Rotation::kNone) {
  return make_tile_format({.name = "q3_0", .rotation = rotation}, side, head_dim).value();
}

// A block that begins with `values` and goes on with zeros, written at row 3.
struct Coded {
  std::vector<unsigned> codes;
  std::vector<float> decoded;
};
Coded code_block(Side side, const std::vector<float>& values) {
  const TileFormat f = make(side, kBlock);
  std::vector<float> row(kBlock, 0.0F);
  std::copy(values.begin(), values.end(), row.begin());
  std::vector<std::byte> tile(f.tile_bytes);
  EXPECT_TRUE(f.kernels.encode(f, tile.data(), 3, {row.data(), 1, kBlock}).ok());
  std::vector<float> out(kBlock);
  f.kernels.decode(f, tile.data(), 3, 4, {out.data(), 1, kBlock});
  Coded coded;
  for (std::size_t c = 0; c < values.size(); ++c) {
    coded.codes.push_back(planar_code(f.planar->parts[0], side, tile.data(), 3, static_cast<int>(c)));
    coded.decoded.push_back(out[c]);
  }
  return coded;
}

double squared_error(const TileFormat& f, const std::vector<float>& x) {
  const std::size_t dim = static_cast<std::size_t>(f.head_dim);
  const std::size_t rows = x.size() / dim;
  std::vector<std::byte> tile(f.tile_bytes);
  EXPECT_TRUE(f.kernels.encode(f, tile.data(), 0, {x.data(), rows, dim}).ok());
  std::vector<float> out(x.size());
  f.kernels.decode(f, tile.data(), 0, static_cast<int>(rows), {out.data(), rows, dim});
  double error = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) error += std::pow(static_cast<double>(out[i]) - static_cast<double>(x[i]), 2);
  return error;
}

TEST(Q30Format, ExampleByHand) {
  // d = 2 / 4; every code is a half-open step of 0.5, decoded to its middle.
  for (const Side side : {Side::kKey, Side::kValue}) {
    const Coded coded = code_block(side, {2.0F, -2.0F, 1.5F, -1.0F, 0.26F, -0.24F, 0.0F});
    EXPECT_EQ(coded.codes, (std::vector<unsigned>{7, 0, 7, 2, 4, 3, 4}));
    EXPECT_EQ(coded.decoded, (std::vector<float>{1.75F, -1.75F, 1.75F, -0.75F, 0.25F, -0.25F, 0.25F}));
  }
}

// The formula, written out again on random blocks; no element is off by more than half a step (and d's rounding to f16).
TEST(Q30Format, CodesAreThoseOfTheFormula) {
  Rng rng(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> row(kBlock);
    const double size = std::exp2(rng.uniform() * 12 - 8);
    float largest = 0.0F;
    for (float& x : row) {
      x = static_cast<float>(rng.normal() * size);
      largest = std::max(largest, std::abs(x));
    }
    const float d = float_from_f16(f16_from_float(largest / 4.0F));
    const Coded coded = code_block(round % 2 == 0 ? Side::kKey : Side::kValue, row);
    for (std::size_t c = 0; c < kBlock; ++c) {
      const int expected = std::clamp(static_cast<int>(std::floor(row[c] / d + 4.0F)), 0, 7);
      ASSERT_EQ(coded.codes[c], static_cast<unsigned>(expected)) << row[c] / d;
      ASSERT_EQ(coded.decoded[c], d * (static_cast<float>(expected) - 3.5F));
      ASSERT_LE(std::abs(coded.decoded[c] - row[c]), 0.5025F * d);
    }
  }
}

TEST(Q30Format, MeanSquaredErrorOnNormalNumbers) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (const Rotation rotation : {Rotation::kNone, Rotation::kHadamard}) {  // rotated, normal numbers stay normal
      const TileFormat f = make(side, 128, rotation);
      Rng rng(1);
      std::vector<float> x(static_cast<std::size_t>(f.tile_rows) * 128);
      double error = 0.0;
      for (int round = 0; round < 20; ++round) {
        for (float& v : x) v = static_cast<float>(rng.normal());
        error += squared_error(f, x);
      }
      EXPECT_NEAR(error / static_cast<double>(20 * x.size()), 0.0315, 0.02 * 0.0315);
    }
  }
}

// 7.2: on rows with outlier channels the rotation spreads them over the blocks.
TEST(Q30Format, RotationSpreadsOutliers72) {
  Rng rng(2);
  std::vector<float> x(64 * 64);
  for (float& v : x) v = static_cast<float>(rng.normal());
  for (std::size_t r = 0; r < 64; ++r) {
    x[r * 64 + 5] *= 50;
    x[r * 64 + 40] *= 50;
  }
  EXPECT_LT(squared_error(make(Side::kKey, 64, Rotation::kHadamard), x), 0.7 * squared_error(make(Side::kKey, 64), x));
}

// 3 bits per element and 2 bytes per 32: 14 bytes. Per token of 32 layers x 8 heads of 128 channels: 28,672.
TEST(Q30Format, Bytes) {
  EXPECT_EQ(make(Side::kKey, 32).live_bytes(1), 14U);
  for (const Side side : {Side::kKey, Side::kValue}) {
    const TileFormat f = make(side, 128);
    EXPECT_EQ(32 * 8 * 2 * f.live_bytes(1), 28672U);
    EXPECT_EQ(f.tile_bytes, f.live_bytes(f.tile_rows));
  }
}

TEST(Q30Format, ZerosAndConstants) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    EXPECT_EQ(code_block(side, std::vector<float>(kBlock, 0.0F)).decoded, std::vector<float>(kBlock, 0.0F));
    EXPECT_EQ(code_block(side, std::vector<float>(kBlock, 1e-40F)).decoded, std::vector<float>(kBlock, 0.0F));
    // A constant lies at the end of the range: the middle of the last step is 7/8 of it.
    EXPECT_EQ(code_block(side, std::vector<float>(kBlock, 4.0F)).decoded, std::vector<float>(kBlock, 3.5F));
    EXPECT_EQ(code_block(side, std::vector<float>(kBlock, -4.0F)).decoded, std::vector<float>(kBlock, -3.5F));
  }
}

TEST(Q30Format, RefusesWhatItCannotHold) {
  for (const Rotation rotation : {Rotation::kNone, Rotation::kHadamard}) {
    const TileFormat f = make(Side::kValue, 64, rotation);
    std::vector<float> row(64, 1.0F);
    std::vector<std::byte> tile(f.tile_bytes);
    ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {row.data(), 1, 64}).ok());
    const std::vector<std::byte> before = tile;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 65520.0F}) {
      row[9] = bad;
      EXPECT_EQ(f.kernels.encode(f, tile.data(), 0, {row.data(), 1, 64}).code(), Code::kBadInput) << bad;
      EXPECT_EQ(tile, before);
    }
  }
  const Status odd = make_tile_format({"q3_0"}, Side::kKey, 80).status();
  EXPECT_EQ(odd.code(), Code::kUsage);
  EXPECT_NE(odd.message().find("80"), std::string::npos) << odd.message();
}

}  // namespace
}  // namespace kvartet
