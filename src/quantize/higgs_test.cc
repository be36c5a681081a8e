// HIGGS against offloading.md 2.3 and the T-tests of section 11.
#include "quantize/higgs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/bfloat16.h"
#include "core/rng.h"
#include "quantize/higgs_grid_data.h"
#include "quantize/higgs_lloyd.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

const HiggsGrid* grid(int p, int n) { return HiggsGrid::find(p, n).value(); }

std::vector<float> normal_row(int dim, std::uint64_t seed) {
  Rng rng(seed, 77);
  std::vector<float> x(static_cast<std::size_t>(dim));
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

struct Coded {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> scales;
};

Coded encode(const HiggsCodec& codec, const std::vector<float>& x) {
  Coded coded{std::vector<std::uint8_t>(codec.code_bytes()), std::vector<std::uint16_t>(codec.groups())};
  codec.encode(x.data(), coded.codes.data(), coded.scales.data());
  return coded;
}

std::vector<float> round_trip(const HiggsCodec& codec, const std::vector<float>& x) {
  const Coded coded = encode(codec, x);
  std::vector<float> back(x.size());
  codec.decode(coded.codes.data(), coded.scales.data(), back.data());
  return back;
}

struct Errors {
  double relative = 0;    // mean of ||x - x_hat||^2 / ||x||^2
  double projection = 0;  // mean of <x, x_hat> / ||x||^2
  double square = 0;      // mean of ||x_hat||^2 / ||x||^2
};

Errors measure(const HiggsCodec& codec, int vectors) {
  Errors sum;
  for (int i = 0; i < vectors; ++i) {
    const std::vector<float> x = normal_row(codec.dim(), static_cast<std::uint64_t>(i));
    const std::vector<float> back = round_trip(codec, x);
    double error = 0;
    double norm = 0;
    double dot = 0;
    double square = 0;
    for (std::size_t c = 0; c < x.size(); ++c) {
      error += (x[c] - back[c]) * static_cast<double>(x[c] - back[c]);
      norm += static_cast<double>(x[c]) * x[c];
      dot += static_cast<double>(x[c]) * back[c];
      square += static_cast<double>(back[c]) * back[c];
    }
    sum.relative += error / norm / vectors;
    sum.projection += dot / norm / vectors;
    sum.square += square / norm / vectors;
  }
  return sum;
}

TEST(Higgs, TFwht) {
  std::vector<float> x = {1, 2, 3, 4};
  hadamard_transform(x);
  EXPECT_EQ(x, (std::vector<float>{10, -2, -4, 0}));
  hadamard_transform(x);
  EXPECT_EQ(x, (std::vector<float>{4, 8, 12, 16}));
  std::vector<float> y = normal_row(128, 3);
  const std::vector<float> before = y;
  hadamard_transform(y);
  hadamard_transform(y);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], 128 * before[i], 1e-3);
}

// 2.3.3: D within 3 % of the released grid (own Lloyd where none was released), cells, means, the centroid property.
TEST(Higgs, Section233Acceptance) {
  struct Row {
    int p, n;
    double distortion;
  };
  const Row rows[] = {{1, 2, 0.3634},  {1, 4, 0.1175},   {1, 16, 0.00950}, {2, 16, 0.1077},  {2, 64, 0.0296},  {2, 256, 0.00776},
                      {4, 16, 0.3438}, {4, 256, 0.0966}, {8, 16, 0.6107},  {8, 128, 0.3789}, {8, 256, 0.3227}, {16, 256, 0.5810}};
  for (const Row& row : rows) {
    const GridFacts facts = measure_grid(*grid(row.p, row.n), 200000, 99);
    RecordProperty("D_" + std::to_string(row.p) + "_" + std::to_string(row.n), std::to_string(facts.distortion));
    EXPECT_LT(facts.distortion, row.distortion * 1.03) << row.p << " " << row.n;
    EXPECT_GT(facts.distortion, row.distortion * 0.95) << row.p << " " << row.n;
    EXPECT_GT(facts.least_share, 0.05) << row.p << " " << row.n;
    EXPECT_LT(facts.largest_share, 4) << row.p << " " << row.n;
    EXPECT_LT(facts.largest_mean, 0.01) << row.p << " " << row.n;
    EXPECT_NEAR(facts.decoded_square + facts.distortion, 1, 0.005) << row.p << " " << row.n;
  }
}

TEST(Higgs, ShippedGridsComeFromTheTrainer) {
  const std::vector<float> trained = train_higgs_grid({.p = 1, .n = 4, .samples_per_point = 100000, .iterations = 100});
  ASSERT_EQ(trained.size(), 4U);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(trained[static_cast<std::size_t>(i)], grid(1, 4)->point(i, 0), 1.01F / kHiggsGridUnit);
}

TEST(Higgs, THiggsD) {
  struct Row {
    int p, n, group;
    double distortion;
  };
  const Row rows[] = {{2, 16, 128, 0.1064},   {2, 16, 512, 0.1072},    {2, 16, 1024, 0.1073}, {2, 256, 128, 0.00764},
                      {2, 256, 512, 0.00771}, {2, 256, 1024, 0.00774}, {4, 16, 128, 0.3415},  {4, 16, 512, 0.3431},
                      {4, 16, 1024, 0.3431},  {4, 256, 128, 0.0955},   {4, 256, 512, 0.0962}, {4, 256, 1024, 0.0964},
                      {8, 256, 128, 0.3200},  {8, 256, 512, 0.3216},   {8, 256, 1024, 0.3221}};
  for (const Row& row : rows) {
    const Errors errors = measure(HiggsCodec(grid(row.p, row.n), 1024, row.group), 150);
    RecordProperty("D_" + std::to_string(row.p) + "_" + std::to_string(row.n) + "_g" + std::to_string(row.group),
                   std::to_string(errors.relative));
    EXPECT_NEAR(errors.relative, row.distortion, 0.05 * row.distortion) << row.p << " " << row.n << " " << row.group;
  }
}

TEST(Higgs, THiggsCentroid) {
  for (const auto& [p, n] : {std::pair{2, 256}, {4, 256}, {8, 256}}) {
    const Errors errors = measure(HiggsCodec(grid(p, n), 1024, 1024), 300);
    EXPECT_NEAR(errors.projection, 1 - errors.relative, 0.005);
    EXPECT_NEAR(errors.square, 1 - errors.relative, 0.005);
  }
}

TEST(Higgs, THiggsScale) {
  const HiggsCodec codec(grid(4, 256), 128, 128);
  const std::vector<float> x = normal_row(128, 5);
  const Coded one = encode(codec, x);
  for (const float a : {1e-3F, 1e3F}) {
    std::vector<float> scaled = x;
    for (float& v : scaled) v *= a;
    const Coded coded = encode(codec, scaled);
    EXPECT_EQ(coded.codes, one.codes);
    EXPECT_NEAR(float_from_bf16(coded.scales[0]) / a, float_from_bf16(one.scales[0]), float_from_bf16(one.scales[0]) / 128);
  }
}

TEST(Higgs, THiggsZero) {
  const HiggsCodec codec(grid(2, 256), 64, 64);
  for (const float x : round_trip(codec, std::vector<float>(64, 0.0F))) EXPECT_EQ(x, 0.0F);
}

TEST(Higgs, THiggsPad) {
  const HiggsCodec two_groups(grid(4, 256), 192, 128);
  EXPECT_EQ(two_groups.groups(), 2U);
  EXPECT_EQ(two_groups.row_bytes(), 2 * (32 + 2U));
  EXPECT_LT(measure(two_groups, 50).relative, 0.13);
  const HiggsCodec wide_blocks(grid(16, 256), 8, 8);  // a group shorter than a block
  EXPECT_EQ(wide_blocks.code_bytes(), 1U);
  EXPECT_EQ(round_trip(wide_blocks, normal_row(8, 1)).size(), 8U);
}

// A Hadamard row turns into one spike: far from Gaussian without signs, near D with them.
TEST(Higgs, THiggsAdv) {
  const std::vector<float> ones(128, 1.0F);
  const auto error = [&](HiggsSigns signs) {
    const std::vector<float> back = round_trip(HiggsCodec(grid(4, 256), 128, 128, signs), ones);
    double sum = 0;
    for (const float x : back) sum += (x - 1.0) * (x - 1.0) / 128;
    return sum;
  };
  EXPECT_GT(error(HiggsSigns::kNone), 0.4);
  EXPECT_LT(error(HiggsSigns::kSeeded), 0.2);
}

// Groups of whole vectors are decoded in registers: the bits of points, scale and transform one after the other.
TEST(Higgs, DecodingInRegistersChangesNoBit) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const auto& [p, n] : {std::pair{2, 16}, {2, 256}, {4, 16}, {4, 256}}) {
      for (const int group : {32, 64, 128, 1024}) {
        const int dim = group == 64 ? 192 : group;
        const HiggsCodec codec(grid(p, n), dim, group);
        const Coded coded = encode(codec, normal_row(dim, 3));
        std::vector<float> got(static_cast<std::size_t>(dim) + 1, -5.0F);
        codec.decode(coded.codes.data(), coded.scales.data(), got.data());
        std::vector<float> expected;
        for (std::size_t g = 0; g < codec.groups(); ++g) {
          const float scale = float_from_bf16(coded.scales[g]) / static_cast<float>(group);
          std::vector<float> y;
          for (int i = 0; i < group; ++i) {
            const std::uint8_t code = coded.codes[g * static_cast<std::size_t>(group / p) + static_cast<std::size_t>(i / p)];
            y.push_back(scale * codec.grid().point(code, i % p));
          }
          hadamard_transform(y);
          expected.insert(expected.end(), y.begin(), y.end());
        }
        expected.push_back(-5.0F);
        EXPECT_EQ(got, expected) << target.name << " (" << p << "," << n << ") group " << group;
      }
    }
  }
}

TEST(Higgs, UnknownGridNamesTheKnown) {
  const auto missing = HiggsGrid::find(8, 4096);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("(4,256)"), std::string::npos);
}

}  // namespace
}  // namespace kvartet
