// Rotation as offloading.md 1.6 writes it.
#include "core/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/normals_fixture.h"

namespace kvartet {
namespace {

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(RopeTable, HalfSplitByHand) {
  const RopeShape shape{.dims = 4, .base = 10000, .scale = 1, .layout = RopeLayout::kHalves};
  const RopeTable table = RopeTable::create(shape, 8, *Arena::create()).value();
  std::vector<float> x = {1, 2, 3, 4, 9};  // the fifth channel does not turn
  table.rotate(x.data(), 5);
  const double a = 5;         // angle of the first pair: position * base^0
  const double b = 5 * 1e-2;  // of the second: base^(-2/4)
  EXPECT_NEAR(x[0], 1 * std::cos(a) - 3 * std::sin(a), 1e-5);
  EXPECT_NEAR(x[2], 3 * std::cos(a) + 1 * std::sin(a), 1e-5);
  EXPECT_NEAR(x[1], 2 * std::cos(b) - 4 * std::sin(b), 1e-5);
  EXPECT_NEAR(x[3], 4 * std::cos(b) + 2 * std::sin(b), 1e-5);
  EXPECT_EQ(x[4], 9);
}

TEST(RopeTable, NeighboursFactorsAndScale) {
  const RopeShape shape{.dims = 4, .base = 10000, .scale = 0.5, .layout = RopeLayout::kNeighbours, .factors = {1, 8}};
  const RopeTable table = RopeTable::create(shape, 8, *Arena::create()).value();
  std::vector<float> x = {1, 2, 3, 4};
  table.rotate(x.data(), 4);
  const double a = 4 * 0.5;
  const double b = 4 * 0.5 * 1e-2 / 8;
  EXPECT_NEAR(x[0], 1 * std::cos(a) - 2 * std::sin(a), 1e-5);
  EXPECT_NEAR(x[1], 2 * std::cos(a) + 1 * std::sin(a), 1e-5);
  EXPECT_NEAR(x[2], 3 * std::cos(b) - 4 * std::sin(b), 1e-5);
}

TEST(RopeTable, KeepsNormsAndRelativePositions) {
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kNeighbours}) {
    const RopeTable table =
        RopeTable::create({.dims = 64, .base = 10000, .scale = 1, .layout = layout}, 300, *Arena::create()).value();
    const std::vector<float> q = normals(64, 1);
    const std::vector<float> k = normals(64, 2);
    const auto at = [&](std::vector<float> x, int position) {
      table.rotate(x.data(), position);
      return x;
    };
    EXPECT_EQ(at(q, 0), q);
    EXPECT_NEAR(dot(at(q, 123), at(q, 123)), dot(q, q), 1e-3);
    EXPECT_NEAR(dot(at(q, 120), at(k, 20)), dot(at(q, 250), at(k, 150)), 1e-2);
    EXPECT_GT(std::abs(dot(at(q, 120), at(k, 20)) - dot(at(q, 121), at(k, 20))), 1e-2);  // T-ROPE-AFTER: one off is not the same
  }
}

// The angles are the frequency's multiples, to the rounding of two products; the model's own, which RopeTurn has, differ from
// them by the roundings that its graph makes in f32: one for each pair on the way, each half a unit in the angle's last place.
TEST(RopeTable, AnglesAreTrueAndNearTheModelsOwn) {
  for (const RopeShape& shape : {RopeShape{.dims = 64, .base = 100000, .layout = RopeLayout::kHalves},
                                 RopeShape{.dims = 128, .base = 500000, .scale = 0.5, .layout = RopeLayout::kNeighbours},
                                 RopeShape{.dims = 40, .factors = std::vector<float>(20, 8.0F)}}) {
    const RopeTable table = RopeTable::create(shape, 131072, *Arena::create()).value();
    const auto pairs = static_cast<std::size_t>(shape.dims) / 2;
    const double step = std::pow(static_cast<float>(shape.base), -2.0F / static_cast<float>(shape.dims));
    for (const int position : {0, 1, 255, 256, 300, 7168, 32767, 65535, 65536, 131071}) {
      std::vector<float> own(2 * pairs);
      for (std::size_t i = 0; i < pairs; ++i) own[shape.layout == RopeLayout::kHalves ? i : 2 * i] = 1;
      std::vector<float> row = own;
      table.rotate(row.data(), position);
      RopeTurn(shape, position).apply(own.data());
      for (std::size_t i = 0; i < pairs; ++i) {
        const bool halves = shape.layout == RopeLayout::kHalves;
        const std::size_t first = halves ? i : 2 * i;
        const std::size_t second = halves ? i + pairs : 2 * i + 1;
        const double factor = shape.factors.empty() ? 1 : shape.factors[i];
        const double angle = position * shape.scale * std::pow(step, static_cast<double>(i)) / factor;
        ASSERT_NEAR(row[first], std::cos(angle), 3e-7) << position << " pair " << i;
        ASSERT_NEAR(row[second], std::sin(angle), 3e-7) << position << " pair " << i;
        const double roundings = 3e-7 + angle * 6e-8 * (2 + static_cast<double>(i));
        ASSERT_NEAR(row[first], own[first], roundings) << position << " pair " << i;
        ASSERT_NEAR(row[second], own[second], roundings) << position << " pair " << i;
      }
    }
  }
}

TEST(RopeTable, ALongerTableSharesWhatIsThere) {
  const RopeShape shape{.dims = 40};  // 20 pairs: padded to 32
  const auto arena = Arena::create();
  const RopeTable one = RopeTable::create(shape, 1, *arena).value();
  EXPECT_EQ(one.positions(), RopeTable::kPositions);
  EXPECT_EQ(one.padded_pairs(), 32);
  EXPECT_EQ(arena->allocated_bytes(), RopeTable::bytes(shape, 1));
  const RopeTable longer = one.extended(RopeTable::kPositions + 1, *arena).value();
  EXPECT_EQ(longer.positions(), 2 * RopeTable::kPositions);
  EXPECT_EQ(longer.of(7).rest, one.of(7).rest);
  EXPECT_EQ(longer.of(7).multiple, one.of(7).multiple);
  EXPECT_EQ(arena->allocated_bytes(), RopeTable::bytes(shape, RopeTable::kPositions + 1));
  const RopeTable at_once = RopeTable::create(shape, RopeTable::kPositions + 1, *arena).value();
  for (const int position : {0, 255, 256, 65535, 65536, 131071}) {
    std::vector<float> row = normals(40, 3);
    std::vector<float> expected = row;
    longer.rotate(row.data(), position);
    at_once.rotate(expected.data(), position);
    EXPECT_EQ(row, expected) << position;
    for (const float* const part : {longer.of(position).multiple, longer.of(position).rest}) {
      for (std::size_t i = 20; i < 32; ++i) {  // what is too many turns by nothing
        EXPECT_EQ(part[i], 1.0F);
        EXPECT_EQ(part[32 + i], 0.0F);
      }
    }
  }
}

TEST(RopeTable, AFullArenaIsTold) {
  const auto arena = Arena::create(1000);
  EXPECT_EQ(RopeTable::create({.dims = 64}, 8, *arena).status().code(), Code::kExhausted);
  EXPECT_EQ(arena->allocated_bytes(), 0U);
  const auto half = Arena::create(RopeTable::bytes({.dims = 64}, 1) - 1);  // room for one of the two tables
  EXPECT_EQ(RopeTable::create({.dims = 64}, 8, *half).status().code(), Code::kExhausted);
  EXPECT_EQ(half->allocated_bytes(), 0U);
}

}  // namespace
}  // namespace kvartet
