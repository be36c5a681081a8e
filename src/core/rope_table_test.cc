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

TEST(RopeTurn, IsOneRowOfTheTable) {
  const RopeShape shape{.dims = 64, .base = 10000, .scale = 0.5, .layout = RopeLayout::kHalves};
  const RopeTable table = RopeTable::create(shape, 300, *Arena::create()).value();
  for (const int position : {0, 1, 299}) {
    std::vector<float> by_table = normals(64, 3);
    std::vector<float> by_turn = by_table;
    table.rotate(by_table.data(), position);
    RopeTurn(shape, position).apply(by_turn.data());
    EXPECT_EQ(by_turn, by_table);
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
  EXPECT_EQ(longer.of(7), one.of(7));
  EXPECT_EQ(arena->allocated_bytes(), RopeTable::bytes(shape, RopeTable::kPositions + 1));
  for (const int position : {0, 255, 256, 511}) {
    std::vector<float> row = normals(40, 3);
    std::vector<float> expected = row;
    longer.rotate(row.data(), position);
    RopeTurn(shape, position).apply(expected.data());
    EXPECT_EQ(row, expected) << position;
    for (std::size_t i = 20; i < 32; ++i) {  // what is too many turns by nothing
      EXPECT_EQ(longer.of(position)[i], 1.0F);
      EXPECT_EQ(longer.of(position)[32 + i], 0.0F);
    }
  }
}

TEST(RopeTable, AFullArenaIsTold) {
  const auto arena = Arena::create(1000);
  EXPECT_EQ(RopeTable::create({.dims = 64}, 8, *arena).status().code(), Code::kExhausted);
  EXPECT_EQ(arena->allocated_bytes(), 0U);
}

}  // namespace
}  // namespace kvartet
