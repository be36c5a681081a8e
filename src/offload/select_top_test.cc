// Aggregation and top-k: T-AGG, T-MEANQ, T-DET of offloading.md 11.
#include "offload/select_top.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/normals_fixture.h"
#include "core/rng.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

// The obvious way.
std::vector<std::int32_t> reference_top(const std::vector<float>& scores, int k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<float> aggregated(Aggregate aggregate, const std::vector<float>& logits, std::size_t heads) {
  std::vector<float> scores(logits.size() / heads);
  aggregate_scores(aggregate, {logits.data(), heads, scores.size()}, scores);
  return scores;
}

std::vector<std::int32_t> order_of(const std::vector<float>& scores) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  return order;
}

TEST(SelectTop, TAgg) {
  const std::vector<float> logits = {10, 0, 9, 0, 1, 0.9F};
  using Order = std::vector<std::int32_t>;
  EXPECT_EQ(order_of(aggregated(Aggregate::kMaxLogit, logits, 2)), (Order{0, 2, 1}));
  const std::vector<float> mean = aggregated(Aggregate::kMeanQuery, logits, 2);
  EXPECT_EQ(order_of(mean), (Order{0, 2, 1}));
  EXPECT_NEAR(mean[2], 4.95, 1e-6);
  const std::vector<float> soft = aggregated(Aggregate::kMaxSoftmax, logits, 2);
  EXPECT_EQ(order_of(soft), (Order{0, 1, 2}));
  EXPECT_NEAR(std::exp(soft[0]), 0.731, 1e-3);
  EXPECT_NEAR(std::exp(soft[1]), 0.440, 1e-3);
  EXPECT_NEAR(std::exp(soft[2]), 0.398, 1e-3);
  const std::vector<float> sum = aggregated(Aggregate::kSumSoftmax, logits, 2);
  EXPECT_NEAR(sum[2], 0.269 + 0.398, 1e-3);
}

TEST(SelectTop, TMeanQ) {
  const std::vector<float> logits = normals(5 * 300, 2);
  const std::vector<float> scores = aggregated(Aggregate::kMeanQuery, logits, 5);
  for (std::size_t j = 0; j < 300; ++j) {
    double mean = 0;
    for (std::size_t h = 0; h < 5; ++h) mean += logits[h * 300 + j] / 5.0;
    EXPECT_NEAR(scores[j], mean, 1e-5);
  }
}

TEST(SelectTop, MaxSoftmaxInDoubleOnEveryTarget) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const std::size_t count : {1U, 3U, 8U, 17U, 1000U}) {
      std::vector<float> logits = normals(3 * count, 8);
      for (float& x : logits) x *= 20;
      const std::vector<float> scores = aggregated(Aggregate::kMaxSoftmax, logits, 3);
      for (std::size_t j = 0; j < count; ++j) {
        double best = -1e300;
        for (std::size_t h = 0; h < 3; ++h) {
          double sum = 0;
          for (std::size_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(logits[h * count + i]) - 100);
          best = std::max(best, logits[h * count + j] - 100 - std::log(sum));
        }
        EXPECT_NEAR(scores[j], best, 2e-5 * (1 + std::abs(best))) << target.name;
      }
    }
  }
}

// Whatever the logits' size, and with more queries than are walked together.
TEST(SelectTop, MaxSoftmaxOnEveryTarget) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const std::size_t count : {1U, 2U, 3U, 8U, 257U, 1001U}) {
      for (const std::size_t queries : {1U, 2U, 3U, 4U, 5U}) {
        for (const float size : {0.1F, 20.0F, 300.0F}) {
          std::vector<float> rows = normals(queries * count, 9);
          for (std::size_t h = 0; h < queries; ++h)
            for (std::size_t j = 0; j < count; ++j) rows[h * count + j] *= size * static_cast<float>(j + 1) / 500;
          std::vector<float> expected(count);
          for (std::size_t j = 0; j < count; ++j) {
            double best = -1e300;
            for (std::size_t h = 0; h < queries; ++h) {
              const float* const row = rows.data() + h * count;
              const double most = *std::max_element(row, row + count);
              double sum = 0;
              for (std::size_t i = 0; i < count; ++i) sum += std::exp(row[i] - most);
              best = std::max(best, queries == 1 ? row[j] : row[j] - most - std::log(sum));
            }
            expected[j] = static_cast<float>(best);
          }
          std::vector<float> scores(count + 1, 7.0F);
          aggregate_scores(Aggregate::kMaxSoftmax, {rows.data(), queries, count}, std::span<float>(scores).first(count));
          for (std::size_t j = 0; j < count; ++j)
            ASSERT_NEAR(scores[j], expected[j], 2e-5 * (1 + std::abs(expected[j]))) << target.name << " " << count << " " << size;
          EXPECT_EQ(scores[count], 7.0F);
        }
      }
    }
  }
}

TEST(SelectTop, TDetTiesGoToTheLowerIndex) {
  TopSelector top;
  std::vector<std::int32_t> chosen;
  top.select(std::vector<float>{1, 2, 2, 0.0F, -0.0F, 2}, 2, &chosen);
  EXPECT_EQ(chosen, (std::vector<std::int32_t>{1, 2}));
  std::vector<float> many(5000);
  Rng rng(6);
  for (float& x : many) x = static_cast<float>(rng.below(7)) - 3;
  for (const int k : {0, 1, 13, 700, 4999, 5000}) {
    top.select(many, k, &chosen);
    EXPECT_EQ(chosen, reference_top(many, k)) << k;
  }
}

TEST(SelectTop, EqualsAFullSort) {
  TopSelector top;
  std::vector<std::int32_t> chosen;
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const std::size_t count : {1U, 5U, 1023U, 1024U, 1031U, 30000U}) {
      std::vector<float> scores = normals(count, count);
      for (const double share : {0.001, 1.0 / 32, 0.25, 1.0}) {
        const int k = static_cast<int>(share * static_cast<double>(count));
        top.select(scores, k, &chosen);
        EXPECT_EQ(chosen, reference_top(scores, k)) << target.name << " " << count << " " << k;
      }
      std::sort(scores.begin(), scores.end());  // the sample's guess is at its worst on sorted scores
      top.select(scores, static_cast<int>(count / 2), &chosen);
      EXPECT_EQ(chosen, reference_top(scores, static_cast<int>(count / 2))) << target.name;
    }
  }
}

// Infinities and the smallest numbers of both signs have their place too.
TEST(SelectTop, EveryFiniteAndInfiniteScoreHasItsPlace) {
  TopSelector top;
  std::vector<std::int32_t> chosen;
  std::vector<float> scores = {INFINITY, -INFINITY, 3e38F, -3e38F, 1e-45F, -1e-45F, 0.0F, -0.0F, 1.0F, -1.0F};
  for (int i = 0; i < 1000; ++i) scores.push_back(i % 2 == 0 ? 2e-38F : -2e-38F);
  for (const int k : {1, 2, 3, 4, 5, 504, 505, 506, 507, 1007, 1009, 1010}) {
    top.select(scores, k, &chosen);
    EXPECT_EQ(chosen, reference_top(scores, k)) << k;
  }
}

// What is broken shows in the output; a selection ends all the same, with as many rows as were wanted.
TEST(SelectTop, NansDoNotHang) {
  for (const std::size_t count : {std::size_t{3}, std::size_t{200}, std::size_t{5000}}) {
    std::vector<float> scores = normals(count, 7);
    for (std::size_t i = 0; i < count; ++i)
      if (i % 3 != 0) scores[i] = NAN;
    TopSelector top;
    std::vector<std::int32_t> chosen;
    top.select(scores, static_cast<int>(count) / 2, &chosen);
    EXPECT_EQ(chosen.size(), count / 2);
    scores.assign(count, NAN);
    top.select(scores, static_cast<int>(count), &chosen);
    EXPECT_EQ(chosen.size(), count);
  }
}

}  // namespace
}  // namespace kvartet
