// compression.md 6.2 and 6.3: the scalar examples, ties, bounds.
#include "evict/h2o.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "evict/ranking.h"
#include "evict/tova.h"

namespace kvartet {
namespace {

std::vector<std::int32_t> ascending(int count) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

std::vector<std::int32_t> iota_rows(int begin, int end) {
  std::vector<std::int32_t> rows;
  for (int i = begin; i < end; ++i) rows.push_back(i);
  return rows;
}

// 6.2: causal rows [1] [.6 .4] [.5 .1 .4] [.3 .1 .2 .4].
TEST(H2o, Section62Example) {
  const float rows[4][4] = {{1, 0, 0, 0}, {.6F, .4F, 0, 0}, {.5F, .1F, .4F, 0}, {.3F, .1F, .2F, .4F}};
  LayerScores scores{.heads = 1, .window_rows = 0, .tokens = 4, .window = {}, .column_sums = std::vector<float>(4, 0.0F)};
  for (const auto& row : rows) {
    for (std::size_t t = 0; t < 4; ++t) scores.column_sums[t] += row[t];
  }
  const std::vector<float> sums = group_means(scores, 1)[0];
  EXPECT_NEAR(sums[0], 2.4, 1e-6);
  EXPECT_NEAR(sums[1], 0.6, 1e-6);
  EXPECT_NEAR(sums[2], 0.6, 1e-6);
  EXPECT_NEAR(sums[3], 0.4, 1e-6);
  EXPECT_EQ(h2o_rows(sums, ascending(4), 4, {.heavy = 1, .recent = 1}), (std::vector<std::int32_t>{0, 3}));
  // Tokens 1 and 2 tie by sum: the lower position stays (R9).
  const std::vector<float> exact = {2.4F, 0.6F, 0.6F, 0.4F};
  EXPECT_EQ(h2o_rows(exact, ascending(4), 4, {.heavy = 2, .recent = 1}), (std::vector<std::int32_t>{0, 1, 3}));
}

TEST(H2o, Section62RecentRowsAlwaysStayAndFullBudgetIsNoOp) {
  Rng rng(1);
  for (int trial = 0; trial < 50; ++trial) {
    const int rows = 1 + static_cast<int>(rng.below(60));
    std::vector<float> sums;
    for (int i = 0; i < rows; ++i) sums.push_back(static_cast<float>(rng.below(5)));
    const H2oOptions options = h2o_options(1 + static_cast<int>(rng.below(70)), 0.5);
    const std::vector<std::int32_t> kept = h2o_rows(sums, ascending(rows), rows, options);
    EXPECT_EQ(static_cast<int>(kept.size()), std::min(rows, options.budget()));
    for (int row = std::max(0, rows - options.recent); row < rows; ++row)
      EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), row));
    if (options.budget() >= rows) {
      EXPECT_EQ(kept, ascending(rows));
    }
  }
}

TEST(H2o, SharesOfTheBudget) {
  EXPECT_EQ(h2o_options(100, 0.5).recent, 50);
  EXPECT_EQ(h2o_options(100, 0.5).heavy, 50);
  EXPECT_EQ(h2o_options(100, 0).recent, 1);  // R12: the newest row stays
  EXPECT_EQ(h2o_options(100, 1).heavy, 0);
  EXPECT_EQ(h2o_options(1, 0.5).recent, 1);
  EXPECT_EQ(h2o_options(10, 0.3).recent, 3);
}

// R3: query heads of one KV head are averaged.
TEST(H2o, GroupMeans) {
  const LayerScores scores{.heads = 4, .window_rows = 0, .tokens = 2, .window = {}, .column_sums = {1, 2, 3, 4, 10, 20, 30, 40}};
  EXPECT_EQ(group_means(scores, 2), (std::vector<std::vector<float>>{{2, 3}, {20, 30}}));
}

// One row at a time equals the ranking of all, also when rows are not in the order of their positions.
TEST(Ranking, WorstRowIsWhatBestRowsLeaveOut) {
  Rng rng(2);
  for (int trial = 0; trial < 200; ++trial) {
    const auto rows = static_cast<std::size_t>(2 + rng.below(30));
    std::vector<float> scores;
    std::vector<std::int32_t> positions = ascending(static_cast<int>(rows));
    for (std::size_t i = 0; i < rows; ++i) {
      scores.push_back(static_cast<float>(rng.below(4)));
      std::swap(positions[i], positions[rng.below(i + 1)]);
    }
    const int end = 1 + static_cast<int>(rng.below(rows));
    const std::int32_t worst = worst_row(scores, positions, end);
    const std::vector<std::int32_t> best = best_rows(scores, positions, end, end - 1);
    EXPECT_EQ(static_cast<int>(best.size()), end - 1);
    EXPECT_FALSE(std::binary_search(best.begin(), best.end(), worst));
    EXPECT_LT(positions[static_cast<std::size_t>(worst)], end);
  }
  EXPECT_EQ(worst_row({}, {}, 5), -1);
}

// 6.3: last-query weights .30 .05 .10 .15 .40, C = 4: row 1 goes.
TEST(Tova, Section63Example) {
  const std::vector<float> weights = {.30F, .05F, .10F, .15F, .40F};
  EXPECT_EQ(tova_rows(weights, ascending(5), 4), (std::vector<std::int32_t>{0, 2, 3, 4}));
  EXPECT_EQ(worst_row(weights, ascending(5), 100), 1);
  EXPECT_EQ(tova_rows(weights, ascending(5), 5), ascending(5));
  EXPECT_EQ(tova_rows(weights, ascending(5), 1000), ascending(5));
}

// 6.3: no window and no sinks: any row may go, the newest too; ties keep the lower position.
TEST(Tova, Section63NoRowIsProtected) {
  EXPECT_EQ(tova_rows(std::vector<float>{.5F, .4F, .1F}, ascending(3), 2), iota_rows(0, 2));
  EXPECT_EQ(tova_rows(std::vector<float>{.1F, .5F, .4F}, ascending(3), 2), iota_rows(1, 3));
  EXPECT_EQ(tova_rows(std::vector<float>{.3F, .3F, .3F}, ascending(3), 2), iota_rows(0, 2));
}

TEST(Tova, ScoresAreTheMeanOverAllHeads) {
  const std::vector<float> weights = {.2F, .8F, .6F, .4F};
  const std::vector<float> mean = tova_scores({weights.data(), 2, 2});
  EXPECT_FLOAT_EQ(mean[0], .4F);
  EXPECT_FLOAT_EQ(mean[1], .6F);
}

}  // namespace
}  // namespace kvartet
