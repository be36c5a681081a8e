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
