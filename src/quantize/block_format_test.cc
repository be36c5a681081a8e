// q4_0, q4_1, q5_0 and q3_0 (q4_0's rule with 3 bits) against compression.md 7.1, section 9 and T13; rotation against 7.2.
#include "quantize/block_format.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "core/float16.h"
#include "core/rng.h"
#include "quantize/planar_rows.h"
#include "quantize/q8_0_format.h"

namespace kvartet {
namespace {

TileFormat make(const std::string& name, Side side, int head_dim, Rotation rotation = Rotation::kNone) {
  return make_tile_format({.name = name, .rotation = rotation}, side, head_dim).value();
}

// A block that begins with `values` and goes on with zeros, written at row 3.
struct Coded {
  std::vector<unsigned> codes;
  std::vector<float> decoded;
};
Coded code_block(const std::string& name, Side side, const std::vector<float>& values) {
  const TileFormat f = make(name, side, 32);
  std::vector<float> row(32, 0.0F);
  std::copy(values.begin(), values.end(), row.begin());
  std::vector<std::byte> tile(f.tile_bytes);
  EXPECT_TRUE(f.kernels.encode(f, tile.data(), 3, {row.data(), 1, 32}).ok());
  std::vector<float> out(32);
  f.kernels.decode(f, tile.data(), 3, 4, {out.data(), 1, 32});
  Coded coded;
  for (std::size_t c = 0; c < values.size(); ++c) {
    coded.codes.push_back(planar_code(f.planar->parts[0], side, tile.data(), 3, static_cast<int>(c)));
    coded.decoded.push_back(out[c]);
  }
  return coded;
}

TEST(BlockFormats, ExamplesOf71) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const Coded first = code_block("q4_0", side, {1.0F, -0.5F, 0.26F, 0.0F});
    EXPECT_EQ(first.codes, (std::vector<unsigned>{0, 12, 6, 8}));
    EXPECT_EQ(first.decoded, (std::vector<float>{1.0F, -0.5F, 0.25F, 0.0F}));
    // The side opposite the extreme clips: 0.9 and 1 both get the largest code. (The first of the two extremes counts.)
    const Coded second = code_block("q4_0", side, {-1.0F, 0.5F, 1.0F, 0.9F});
    EXPECT_EQ(second.codes, (std::vector<unsigned>{0, 12, 15, 15}));
    EXPECT_EQ(second.decoded, (std::vector<float>{-1.0F, 0.5F, 0.875F, 0.875F}));
  }
}

// d = 1 / -4: the codes are whole steps of 0.25, and the side opposite the extreme ends at three of them.
TEST(BlockFormats, Q30ByHand) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const Coded coded = code_block("q3_0", side, {1.0F, -1.0F, 0.5F, -0.5F, 0.26F, 0.1F, 0.0F});
    EXPECT_EQ(coded.codes, (std::vector<unsigned>{0, 7, 2, 6, 3, 4, 4}));
    EXPECT_EQ(coded.decoded, (std::vector<float>{1.0F, -0.75F, 0.5F, -0.5F, 0.25F, 0.0F, 0.0F}));
  }
}

// The formulas, written out again on random blocks.
TEST(BlockFormats, CodesAreThoseOfTheFormulas71) {
  Rng rng(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> row(32);
    const double size = std::exp2(rng.uniform() * 30 - 20);
    for (float& x : row) x = static_cast<float>(rng.normal() * size);
    float extreme = 0.0F;
    for (const float x : row) extreme = std::abs(x) > std::abs(extreme) ? x : extreme;
    for (const auto& [name, half] : {std::pair{"q3_0", 4}, {"q4_0", 8}, {"q5_0", 16}}) {
      const float d = float_from_f16(f16_from_float(extreme / static_cast<float>(-half)));
      const Coded coded = code_block(name, Side::kValue, row);
      for (std::size_t c = 0; c < 32; ++c) {
        const int expected = std::clamp(static_cast<int>(row[c] / d + static_cast<float>(half) + 0.5F), 0, 2 * half - 1);
        ASSERT_EQ(coded.codes[c], static_cast<unsigned>(expected)) << name << " " << row[c] / d;
        ASSERT_EQ(coded.decoded[c], d * static_cast<float>(expected - half));
      }
    }
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    const float m = float_from_f16(f16_from_float(*low));
    const float d = float_from_f16(f16_from_float((*high - *low) / 15.0F));
    const Coded coded = code_block("q4_1", Side::kKey, row);
    for (std::size_t c = 0; c < 32; ++c) {
      const int expected = std::clamp(static_cast<int>(std::floor((row[c] - m) / d + 0.5F)), 0, 15);
      ASSERT_EQ(coded.codes[c], static_cast<unsigned>(expected));
      ASSERT_FLOAT_EQ(coded.decoded[c], d * static_cast<float>(expected) + m);
    }
  }
}

TEST(BlockFormats, MeanSquaredErrorOf71) {
  const auto error_of = [](const TileFormat& f) {
    Rng rng(1);
    const std::size_t rows = static_cast<std::size_t>(f.tile_rows);
    double error = 0.0;
    std::size_t count = 0;
    std::vector<std::byte> tile(f.tile_bytes);
    std::vector<float> x(rows * 128);
    std::vector<float> out(x.size());
    for (int round = 0; round < 20; ++round) {
      for (float& v : x) v = static_cast<float>(rng.normal());
      EXPECT_TRUE(f.kernels.encode(f, tile.data(), 0, {x.data(), rows, 128}).ok());
      f.kernels.decode(f, tile.data(), 0, f.tile_rows, {out.data(), rows, 128});
      for (std::size_t i = 0; i < x.size(); ++i) error += std::pow(static_cast<double>(out[i]) - static_cast<double>(x[i]), 2);
      count += x.size();
    }
    return error / static_cast<double>(count);
  };
  for (const Side side : {Side::kKey, Side::kValue}) {
    EXPECT_NEAR(error_of(make("q4_0", side, 128)), 0.00738, 0.02 * 0.00738);
    EXPECT_LT(error_of(make("q4_1", side, 128)), 0.0063);  // 0.00611 with 15 steps of the true range (2.8)
    EXPECT_LT(error_of(make("q5_0", side, 128)), 0.00738 / 3.5);
    EXPECT_NEAR(error_of(make("q3_0", side, 128)), 0.0305, 0.02 * 0.0305);  // the formula on 20,000 blocks, outside this program
    // On normal numbers a rotation changes nothing: they stay normal.
    EXPECT_NEAR(error_of(make("q4_0", side, 128, Rotation::kHadamard)), 0.00738, 0.02 * 0.00738);
  }
}

// 7.2: on rows with outlier channels the rotation spreads them over the blocks.
TEST(BlockFormats, RotationSpreadsOutliers72) {
  // With 3 bits, a channel 50 times as large leaves nothing of the others either way.
  for (const auto& [name, outlier] :
       {std::pair{"q8_0", 50.0F}, {"q4_0", 50.0F}, {"q4_1", 50.0F}, {"q5_0", 50.0F}, {"q3_0", 10.0F}}) {
    Rng rng(2);
    std::vector<float> x(64 * 64);
    for (float& v : x) v = static_cast<float>(rng.normal());
    for (std::size_t r = 0; r < 64; ++r) {
      x[r * 64 + 5] *= outlier;
      x[r * 64 + 40] *= outlier;
    }
    double error[2] = {0, 0};
    for (const Rotation rotation : {Rotation::kNone, Rotation::kHadamard}) {
      const TileFormat f = make(name, Side::kKey, 64, rotation);
      std::vector<std::byte> tile(f.tile_bytes);
      ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {x.data(), 64, 64}).ok());
      std::vector<float> out(x.size());
      f.kernels.decode(f, tile.data(), 0, 64, {out.data(), 64, 64});
      for (std::size_t i = 0; i < x.size(); ++i) {
        error[rotation == Rotation::kNone ? 0 : 1] += std::pow(static_cast<double>(out[i]) - static_cast<double>(x[i]), 2);
      }
    }
    EXPECT_LT(error[1], 0.7 * error[0]) << name;
  }
}

// 7.1 and section 9: bytes per 32 elements, and per token of 32 layers x 8 heads of 128 channels.
TEST(BlockFormats, BytesOf71AndSection9) {
  EXPECT_EQ(make("q4_0", Side::kKey, 32).live_bytes(1), 18U);
  EXPECT_EQ(make("q4_1", Side::kKey, 32).live_bytes(1), 20U);
  EXPECT_EQ(make("q5_0", Side::kKey, 32).live_bytes(1), 22U);
  EXPECT_EQ(make("q3_0", Side::kKey, 32).live_bytes(1), 14U);
  const auto row = [](const char* name) { return make(name, Side::kKey, 128).live_bytes(1); };
  EXPECT_EQ(32 * 8 * 2 * row("q5_0"), 45056U);
  EXPECT_EQ(32 * 8 * 2 * row("q4_0"), 36864U);
  EXPECT_EQ(32 * 8 * (row("q8_0") + row("q4_0")), 53248U);
}

TEST(BlockFormats, ZerosAndConstants) {
  for (const char* name : {"q4_0", "q4_1", "q5_0", "q3_0"}) {
    EXPECT_EQ(code_block(name, Side::kKey, std::vector<float>(32, 0.0F)).decoded, std::vector<float>(32, 0.0F)) << name;
    const float expected = 3.5F;  // the extreme itself, and the minimum of a block without range
    EXPECT_EQ(code_block(name, Side::kValue, std::vector<float>(32, expected)).decoded, std::vector<float>(32, expected)) << name;
    for (const float x : code_block(name, Side::kKey, std::vector<float>(32, 1e-40F)).decoded) EXPECT_EQ(x, 0.0F) << name;
  }
}

}  // namespace
}  // namespace kvartet
