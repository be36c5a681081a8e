// SnapKV against compression.md section 4: the table of 4.5, pooling and groups (4.1), gates (4.2), T10.
#include "evict/snapkv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace kvartet {
namespace {

// Scores whose window sum of every query head is `sums` (one head per entry); the window's own columns hold 1.
LayerScores scores_with_sums(const std::vector<std::vector<double>>& sums, int window) {
  const int prefix = static_cast<int>(sums.front().size());
  LayerScores scores{
      .heads = static_cast<int>(sums.size()), .window_rows = window, .tokens = prefix + window, .window = {}, .column_sums = {}};
  for (const std::vector<double>& head : sums) {
    for (int i = 0; i < window; ++i) {
      for (const double sum : head) scores.window.push_back(static_cast<float>(sum / window));
      for (int t = 0; t < window; ++t) scores.window.push_back(1.0F);
    }
  }
  return scores;
}

const std::vector<double> kTable = {0.16, 0.04, 0.04, 0.50, 0.04, 0.04, 0.14, 0.15};
using Rows = std::vector<std::int32_t>;

Rows plan_of(const std::vector<std::vector<double>>& sums, int window, SnapKvOptions options, int kv_heads = 1) {
  options.window = window;
  return snapkv_plan(scores_with_sums(sums, window), kv_heads, options).rows.front();
}

TEST(SnapKv, Section45Table) {
  const std::vector<double> expected = {.0667, .08, .1933, .1933, .1933, .0733, .11, .0967};
  const std::vector<double> pooled = pool_scores(kTable, 3, Pool::kAverage);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(pooled[i], expected[i], 5e-5) << i;
  EXPECT_EQ(plan_of({kTable}, 2, {.capacity = 5, .kernel = 3, .pool = Pool::kAverage}), (Rows{2, 3, 4, 8, 9}));
  EXPECT_EQ(plan_of({kTable}, 2, {.capacity = 5, .kernel = 1, .pool = Pool::kAverage}), (Rows{0, 3, 7, 8, 9}));
  EXPECT_EQ(plan_of({kTable}, 2, {.capacity = 5, .kernel = 3, .pool = Pool::kMax}), (Rows{2, 3, 4, 8, 9}));
}

// 4.1: maxima are padded with -inf, so an edge never sees a zero that beats it.
TEST(SnapKv, Section41MaxPoolingPadsWithMinusInfinity) {
  const std::vector<double> negative = {-3, -2, -1};
  EXPECT_EQ(pool_scores(negative, 3, Pool::kMax), (std::vector<double>{-2, -1, -1}));
}

TEST(SnapKv, Section45WindowAlwaysKeptAndTiesGoLow) {
  for (const double level : {0.0, 0.25}) {
    const std::vector<double> flat(20, level);
    EXPECT_EQ(plan_of({flat}, 4, {.capacity = 7}), (Rows{0, 1, 2, 20, 21, 22, 23}));
  }
}

TEST(SnapKv, Section42NoOpUpToCapacityAndWindow) {
  const Rows all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(plan_of({kTable}, 2, {.capacity = 10}), all);
  EXPECT_EQ(plan_of({kTable}, 2, {.capacity = 11}), all);
  EXPECT_EQ(plan_of({kTable}, 2, {.capacity = 9}).size(), 9U);
  EXPECT_TRUE(snapkv_is_idle(32, {.capacity = 1, .window = 32}));
}

// T10, 4.5: r identical query heads select what one selects; different heads are averaged before pooling.
TEST(SnapKv, T10GroupsOfQueryHeads) {
  for (const int r : {1, 2, 3, 4, 8}) {
    const std::vector<std::vector<double>> heads(static_cast<std::size_t>(r), kTable);
    EXPECT_EQ(plan_of(heads, 2, {.capacity = 5, .kernel = 3}), (Rows{2, 3, 4, 8, 9})) << r;
  }
  // Means: 0.5 0.5 0.6 0 0: head-wise maxima would rank row 0 first.
  EXPECT_EQ(plan_of({{1, 0, .6, 0, 0}, {0, 1, .6, 0, 0}}, 2, {.capacity = 3, .kernel = 1}), (Rows{2, 5, 6}));
  const KeepPlan two = snapkv_plan(scores_with_sums({{1, 0, 0}, {0, 0, 1}}, 1), 2, {.capacity = 2, .window = 1, .kernel = 1});
  EXPECT_EQ(two.rows, (std::vector<Rows>{{0, 3}, {2, 3}}));
}

// 4.1: several caches share one export; each uses the last rows of it, as many as its own window.
TEST(SnapKv, UsesTheLastRowsOfALongerExport) {
  LayerScores scores{.heads = 1, .window_rows = 3, .tokens = 5, .window = {}, .column_sums = {}};
  scores.window = {9, 0, 1, 0, 0,  //
                   0, 1, 0, 0, 0,  //
                   0, 1, 0, 0, 0};
  EXPECT_EQ(snapkv_plan(scores, 1, {.capacity = 3, .window = 2, .kernel = 1}).rows.front(), (Rows{1, 3, 4}));
}

// C19: a budget of one row keeps the newest row.
TEST(SnapKv, C19OneRow) { EXPECT_EQ(plan_of({kTable}, 1, {.capacity = 1}), (Rows{8})); }

TEST(SnapKv, NanRanksLast) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> scores = {nan, 0.0, nan, 0.5, nan};
  EXPECT_EQ(top_rows(scores, 2), (Rows{1, 3}));
  EXPECT_EQ(top_rows(scores, 9), (Rows{0, 1, 2, 3, 4}));
}

// The same table with rows in another order: what stays are the same positions.
TEST(SnapKv, RowsInAnyOrderAsInThatOfPositions) {
  const std::vector<std::int32_t> positions = {7, 20, 2, 5, 21,
                                               4, 3,  1, 0, 6};  // of 22 tokens some are gone; the window is 20, 21
  std::vector<float> sums;
  for (const std::int32_t p : positions) sums.push_back(p < 8 ? static_cast<float>(kTable[static_cast<std::size_t>(p)]) : 0.0F);
  const auto kept = [&](int kernel, Pool pool) {
    Rows at;
    for (const std::int32_t row : snapkv_rows(sums, positions, 22, {.capacity = 5, .window = 2, .kernel = kernel, .pool = pool}))
      at.push_back(positions[static_cast<std::size_t>(row)]);
    std::sort(at.begin(), at.end());
    return at;
  };
  EXPECT_EQ(kept(3, Pool::kAverage), (Rows{2, 3, 4, 20, 21}));
  EXPECT_EQ(kept(1, Pool::kAverage), (Rows{0, 3, 7, 20, 21}));
  EXPECT_EQ(kept(3, Pool::kMax), (Rows{2, 3, 4, 20, 21}));
}

}  // namespace
}  // namespace kvartet
