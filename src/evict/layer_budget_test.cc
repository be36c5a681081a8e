// compression.md 6.4 (PyramidKV: budgets over layers) and 6.5 (AdaKV: budgets over heads).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/rng.h"
#include "evict/adakv.h"
#include "evict/pyramidkv.h"

namespace kvartet {
namespace {

std::vector<int> capacities(int capacity, int window, int layers, int tokens) {
  std::vector<int> rows;
  for (int l = 0; l < layers; ++l)
    rows.push_back(pyramid_capacity(tokens, {.snap = {.capacity = capacity, .window = window}, .beta = 20}, l, layers));
  return rows;
}

// 6.4's table: the ends of the line, and totals that are exact where the published steps overshoot.
TEST(PyramidKv, Section64Table) {
  struct Row {
    int capacity, window, layers, tokens, first, least;
  };
  for (const Row& row : {Row{2048, 8, 32, 10000, 3978, 102},
                         {128, 8, 32, 10000, 234, 6},
                         {2048, 8, 32, 4100, 3978, 102},
                         {512, 32, 4, 4000, 936, 24}}) {
    const std::vector<int> rows = capacities(row.capacity, row.window, row.layers, row.tokens);
    EXPECT_EQ(rows.front(), row.first + row.window);
    EXPECT_EQ(rows.back(), row.least + row.window);
    long total = 0;
    for (std::size_t l = 0; l < rows.size(); ++l) {
      total += rows[l];
      if (l > 0) {
        EXPECT_LE(rows[l], rows[l - 1]);
      }
    }
    EXPECT_EQ(total, static_cast<long>(row.capacity) * row.layers);
  }
}

// 6.4's table, its published columns: mn, mx and the integer step, whose last layer and mean are off. Ours is the line between
// the same ends, rounded to rows.
TEST(PyramidKv, Section64PublishedStepsAndTheLine) {
  struct Row {
    int capacity, window, layers, tokens;
    int least, most, step, last;
    double mean;
  };
  for (const Row& row : {Row{2048, 8, 32, 10000, 102, 3978, 125, 103, 2040.5}, Row{128, 8, 32, 10000, 6, 234, 7, 17, 125.5},
                         Row{2048, 8, 32, 3000, 1088, 2992, 61, 1101, 2046.5}, Row{512, 32, 4, 4000, 24, 936, 304, 24, 480}}) {
    const int budget = row.capacity - row.window;
    int least = budget / 20;
    int most = 2 * budget - least;
    if (most >= row.tokens - row.window) {
      most = row.tokens - row.window;
      least = 2 * budget - most;
    }
    const int step = (most - least) / (row.layers - 1);
    EXPECT_EQ(least, row.least);
    EXPECT_EQ(most, row.most);
    EXPECT_EQ(step, row.step);
    EXPECT_EQ(most - (row.layers - 1) * step, row.last);
    EXPECT_EQ(most - (row.layers - 1) * step / 2.0, row.mean);
    if (row.tokens < 2 * budget) continue;  // the gate comes first
    const std::vector<int> rows = capacities(row.capacity, row.window, row.layers, row.tokens);
    for (int l = 0; l < row.layers; ++l) {
      const double line = most - static_cast<double>(l * (most - least)) / (row.layers - 1);
      EXPECT_LT(std::abs(rows[static_cast<std::size_t>(l)] - row.window - line), 1.0) << row.capacity << ", layer " << l;
    }
  }
}

// A prompt that is too short for the steep line: the first layer keeps everything, the total stays.
TEST(PyramidKv, Section64ShortPromptFlattensTheLine) {
  const std::vector<int> rows = capacities(100, 8, 7, 186);
  EXPECT_EQ(rows.front(), 186);
  EXPECT_EQ(rows.back(), 2 * 92 - 178 + 8);
  int total = 0;
  for (const int r : rows) total += r;
  EXPECT_EQ(total, 700);
}

// C <= L < 2B: SnapKV's budget in every layer.
TEST(PyramidKv, Section64Gate) {
  for (const int rows : capacities(2048, 8, 32, 3000)) EXPECT_EQ(rows, 2048);
  for (const int rows : capacities(100, 8, 1, 5000)) EXPECT_EQ(rows, 100);
}

TEST(PyramidKv, EveryTotalIsExactAndEveryLayerKeepsItsWindow) {
  Rng rng(1);
  for (int trial = 0; trial < 500; ++trial) {
    const int layers = 1 + static_cast<int>(rng.below(40));
    const int window = 1 + static_cast<int>(rng.below(40));
    const int capacity = window + 1 + static_cast<int>(rng.below(500));
    const int tokens = capacity + 1 + static_cast<int>(rng.below(3000));
    long total = 0;
    for (const int rows : capacities(capacity, window, layers, tokens)) {
      EXPECT_GE(rows, window);
      EXPECT_LE(rows, tokens);
      total += rows;
    }
    EXPECT_EQ(total, static_cast<long>(capacity) * layers) << capacity << " " << window << " " << layers << " " << tokens;
  }
}

// Scores of one observing query; its own row is the last one.
LayerScores one_query(const std::vector<std::vector<float>>& heads) {
  LayerScores scores{.heads = static_cast<int>(heads.size()),
                     .window_rows = 1,
                     .tokens = static_cast<int>(heads[0].size()) + 1,
                     .window = {},
                     .column_sums = {}};
  for (const std::vector<float>& head : heads) {
    scores.window.insert(scores.window.end(), head.begin(), head.end());
    scores.window.push_back(0.1F);
  }
  return scores;
}

const SnapKvOptions kThreeRows{.capacity = 4, .window = 1, .kernel = 1, .pool = Pool::kMax};

// 6.5's example, 2 heads, B = 3: the global top 6 falls 1 and 5; the reserve of a head is floor(alpha * 3).
TEST(AdaKv, Section65Example) {
  const LayerScores scores = one_query({{.40F, .05F, .05F, .04F, .03F, .03F}, {.12F, .11F, .10F, .09F, .08F, .07F}});
  const auto counts = [&](double alpha) {
    std::vector<std::size_t> rows;
    for (const auto& head : adakv_plan(scores, 2, kThreeRows, alpha).rows) rows.push_back(head.size() - 1);
    return rows;
  };
  EXPECT_EQ(counts(0), (std::vector<std::size_t>{1, 5}));
  EXPECT_EQ(counts(0.2), (std::vector<std::size_t>{1, 5}));  // floor(0.6) = 0 rows are reserved, and the total is exact
  EXPECT_EQ(counts(0.5), (std::vector<std::size_t>{1, 5}));
  EXPECT_EQ(counts(0.7), (std::vector<std::size_t>{2, 4}));
  EXPECT_EQ(counts(1), (std::vector<std::size_t>{3, 3}));
}

LayerScores random_window(int heads, int window, int tokens, std::uint64_t seed) {
  Rng rng(seed);
  LayerScores scores{.heads = heads, .window_rows = window, .tokens = tokens, .window = {}, .column_sums = {}};
  for (int i = 0; i < heads * window * tokens; ++i) scores.window.push_back(static_cast<float>(rng.uniform()));
  return scores;
}

// 6.5: total rows = Hkv * B + Hkv * w; each head has at least floor(alpha * B) of the prefix, and its window.
TEST(AdaKv, Section65TotalsAndReserves) {
  for (const double alpha : {0.0, 0.2, 0.5, 1.0}) {
    const LayerScores scores = random_window(8, 5, 200, 3);
    const SnapKvOptions options{.capacity = 45, .window = 5, .kernel = 3, .pool = Pool::kAverage};
    const KeepPlan plan = adakv_plan(scores, 4, options, alpha);
    std::size_t total = 0;
    for (const std::vector<std::int32_t>& rows : plan.rows) {
      total += rows.size();
      EXPECT_GE(rows.size(), static_cast<std::size_t>(alpha * 40) + 5);
      EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
      EXPECT_EQ(rows.back(), 199);
    }
    EXPECT_EQ(total, 4U * 45U);
  }
}

// 6.5: alpha = 1, or one KV head, is SnapKV.
TEST(AdaKv, Section65EqualsSnapKv) {
  const SnapKvOptions options{.capacity = 45, .window = 5, .kernel = 7, .pool = Pool::kMax};
  const LayerScores scores = random_window(6, 5, 200, 4);
  EXPECT_EQ(adakv_plan(scores, 3, options, 1).rows, snapkv_plan(scores, 3, options).rows);
  EXPECT_EQ(adakv_plan(scores, 1, options, 0).rows, snapkv_plan(scores, 1, options).rows);
  const LayerScores idle = random_window(2, 5, 40, 5);
  EXPECT_EQ(adakv_plan(idle, 2, options, 0.2).rows, snapkv_plan(idle, 2, options).rows);
}

}  // namespace
}  // namespace kvartet
