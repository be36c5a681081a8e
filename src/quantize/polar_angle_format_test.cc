// Recursive polar coordinates against compression.md 3.10.
#include "quantize/polar_angle_format.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "core/rng.h"
#include "quantize/polar_angle_layout.h"

namespace kvartet {
namespace {

TileFormat make(int head_dim, Rotation rotation = Rotation::kHadamard) {
  return make_polar_angle_format({.name = "polar-angle", .rotation = rotation, .seed = 1}, Side::kValue, head_dim).value();
}

std::vector<float> round_trip(const TileFormat& f, const std::vector<float>& rows) {
  const std::size_t dim = static_cast<std::size_t>(f.head_dim);
  std::vector<std::byte> tile(f.tile_bytes);
  EXPECT_TRUE(f.kernels.encode(f, tile.data(), 0, {rows.data(), rows.size() / dim, dim}).ok());
  std::vector<float> out(rows.size());
  f.kernels.decode(f, tile.data(), 0, static_cast<int>(rows.size() / dim), {out.data(), rows.size() / dim, dim});
  return out;
}

TEST(PolarAngle, RelativeErrorOf310) {
  Rng rng(1);
  double error = 0;
  double energy = 0;
  std::vector<float> rows(kPolarRows * 128);
  for (int round = 0; round < 20; ++round) {
    for (float& x : rows) x = static_cast<float>(rng.normal());
    const std::vector<float> out = round_trip(make(128), rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      error += std::pow(static_cast<double>(out[i]) - static_cast<double>(rows[i]), 2);
      energy += std::pow(static_cast<double>(rows[i]), 2);
    }
  }
  EXPECT_NEAR(error / energy, 0.0321, 0.02 * 0.0321);
}

// The codes are those of the angles, computed with atan2: the encoder only compares.
TEST(PolarAngle, CodesAreTheNearestAngles310) {
  constexpr double kAngles[3][4] = {
      {0.3098, 0.6340, 0.9368, 1.2610}, {0.4262, 0.6744, 0.8964, 1.1446}, {0.5242, 0.7059, 0.8649, 1.0466}};
  Rng rng(2);
  std::vector<float> rows(kPolarRows * 64);
  for (float& x : rows) x = static_cast<float>(rng.normal());
  const std::vector<float> out = round_trip(make(64, Rotation::kNone), rows);
  int misses = 0;
  for (std::size_t at = 0; at < rows.size(); at += 16) {
    double x[16];
    double r[16];
    for (std::size_t i = 0; i < 16; ++i) r[i] = static_cast<double>(rows[at + i]);
    double angle1[8];
    for (std::size_t i = 0; i < 8; ++i) {
      angle1[i] = (std::floor(std::atan2(r[2 * i + 1], r[2 * i]) / (M_PI / 8)) + 0.5) * (M_PI / 8);
      x[i] = std::hypot(r[2 * i], r[2 * i + 1]);
    }
    double chosen[3][4];
    for (std::size_t level = 0, pairs = 4; level < 3; ++level, pairs /= 2) {
      for (std::size_t i = 0; i < pairs; ++i) {
        const double angle = std::atan2(x[2 * i + 1], x[2 * i]);
        double best = kAngles[level][0];
        for (const double a : kAngles[level]) best = std::abs(a - angle) < std::abs(best - angle) ? a : best;
        chosen[level][i] = best;
        x[i] = std::hypot(x[2 * i], x[2 * i + 1]);
      }
    }
    for (int level = 2; level >= 0; --level) {
      for (int i = (8 >> (level + 1)) - 1; i >= 0; --i) {
        const double radius = x[i];
        x[2 * i] = radius * std::cos(chosen[level][i]);
        x[2 * i + 1] = radius * std::sin(chosen[level][i]);
      }
    }
    for (std::size_t i = 0; i < 8; ++i) {
      const double off =
          std::hypot(x[i] * std::cos(angle1[i]) - out[at + 2 * i], x[i] * std::sin(angle1[i]) - out[at + 2 * i + 1]);
      misses += off > 2e-3 * x[i] ? 1 : 0;
    }
  }
  EXPECT_LE(misses, 8);  // an angle that lies on a border may round either way, which moves its whole subtree
}

// The law of a level's angle is proportional to sin(2 psi)^(2^(level - 1) - 1): with midpoints as borders, every angle that a
// code stands for is the mean of its cell. Level 1 is uniform.
TEST(PolarAngle, AnglesAreOptimalForTheLawOf310) {
  constexpr int kSteps = 4000;
  const PolarTables& tables = polar_tables();
  for (int level = 0; level < 3; ++level) {
    double angles[4];
    for (int i = 0; i < 4; ++i) angles[i] = std::atan2(tables.sine[level][i], tables.cosine[level][i]);
    const double power = (1 << (level + 1)) - 1;
    for (int i = 0; i < 4; ++i) {
      const double from = i == 0 ? 0.0 : (angles[i - 1] + angles[i]) / 2;
      const double to = i == 3 ? M_PI / 2 : (angles[i] + angles[i + 1]) / 2;
      double weight = 0;
      double moment = 0;
      for (int s = 0; s < kSteps; ++s) {
        const double psi = from + (to - from) * (s + 0.5) / kSteps;
        const double w = std::pow(std::sin(2 * psi), power);
        weight += w;
        moment += w * psi;
      }
      EXPECT_NEAR(angles[i], moment / weight, 1e-3) << "level " << level + 2;
      EXPECT_NEAR(angles[i] + angles[3 - i], M_PI / 2, 2e-3);
    }
  }
  for (int i = 0; i < 16; ++i) {
    EXPECT_NEAR(tables.first_cosine[i], std::cos((i + 0.5) * M_PI / 8), 1e-6);
    EXPECT_NEAR(tables.first_sine[i], std::sin((i + 0.5) * M_PI / 8), 1e-6);
  }
}

// Where quantizing changes no angle, the recursion gives the row back: to the rounding of its radii to f16.
TEST(PolarAngle, RowsMadeOfTheirCodesComeBack310) {
  const PolarTables& tables = polar_tables();
  Rng rng(3);
  std::vector<float> rows(kPolarRows * 64);
  std::vector<double> radii;
  for (std::size_t at = 0; at < rows.size(); at += 16) {
    double x[16];
    x[0] = 0.5 + 3 * rng.uniform();
    radii.push_back(x[0]);
    for (int level = 2; level >= 0; --level) {
      for (int i = (8 >> (level + 1)) - 1; i >= 0; --i) {
        const std::size_t code = rng.below(4);
        const double radius = x[i];
        x[2 * i] = radius * static_cast<double>(tables.cosine[level][code]);
        x[2 * i + 1] = radius * static_cast<double>(tables.sine[level][code]);
      }
    }
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t code = rng.below(16);
      rows[at + 2 * i] = static_cast<float>(x[i] * static_cast<double>(tables.first_cosine[code]));
      rows[at + 2 * i + 1] = static_cast<float>(x[i] * static_cast<double>(tables.first_sine[code]));
    }
  }
  const std::vector<float> out = round_trip(make(64, Rotation::kNone), rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_NEAR(out[i], rows[i], std::abs(rows[i]) * 0x1p-11 + 1e-6 * radii[i / 16]) << i;
  }
}

TEST(PolarAngle, BytesAndZeros310) {
  EXPECT_EQ(make(128).live_bytes(1), 62U);  // 3.875 bits
  EXPECT_EQ(make(64).tile_bytes, make(64).live_bytes(kPolarRows));
  EXPECT_EQ(kPolarUnitBytes * 4, make(64).tile_bytes);
  const std::vector<float> zeros(64 * 5, 0.0F);
  for (const float x : round_trip(make(64), zeros)) EXPECT_EQ(x, 0.0F);
  EXPECT_FALSE(make_polar_angle_format({.name = "polar-angle"}, Side::kKey, 96).ok());
}

}  // namespace
}  // namespace kvartet
