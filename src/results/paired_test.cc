#include "results/paired.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvartet {
namespace {

// DESIGN 8: a verdict against full only where the paired interval allows it. Figures worked out by hand.

TEST(Paired, StudentQuantilesMatchTheTable) {
  EXPECT_NEAR(student_t_975(1), 12.706, 1e-3);
  EXPECT_NEAR(student_t_975(4), 2.776, 1e-3);
  EXPECT_NEAR(student_t_975(11), 2.201, 1e-3);
  EXPECT_NEAR(student_t_975(19), 2.093, 1e-3);
  EXPECT_NEAR(student_t_975(29), 2.045, 1e-3);
  EXPECT_NEAR(student_t_975(120), 1.980, 1e-3);
}

TEST(Paired, MeasurementIntervalByHand) {
  // mean -0.03, deviations 0.02 0 -0.02 0.01 -0.01: s^2 = 0.001/4, standard error sqrt(0.00025/5) = 0.0070711.
  const std::vector<double> d = {-0.01, -0.03, -0.05, -0.02, -0.04};
  const PairedInterval i = paired_interval(d, ScoreKind::kMeasurement);
  ASSERT_TRUE(i.measurable);
  EXPECT_NEAR(i.mean, -0.03, 1e-12);
  EXPECT_NEAR(i.high, -0.03 + 2.776445 * 0.00707107, 1e-6);
  EXPECT_NEAR(i.low, -0.03 - 2.776445 * 0.00707107, 1e-6);
  EXPECT_EQ(verdict_of(i, 0.05), Verdict::kSame);   // [-0.0496, -0.0104] lies within +-0.05: too small to matter
  EXPECT_EQ(verdict_of(i, 0.04), Verdict::kWorse);  // excludes 0 and reaches past the margin
}

TEST(Paired, CountIntervalByHand) {
  // 20 pairs, 3 lost, none won: center -3/22, variance (3+1)/22 - (3/22)^2 = 0.163223, half 1.96*sqrt(0.163223/22) = 0.168820.
  std::vector<double> d(20, 0.0);
  d[3] = d[7] = d[11] = -1;
  const PairedInterval i = paired_interval(d, ScoreKind::kCount);
  EXPECT_NEAR(i.mean, -0.15, 1e-12);
  EXPECT_NEAR(i.low, -3.0 / 22 - 0.168820, 1e-5);
  EXPECT_NEAR(i.high, -3.0 / 22 + 0.168820, 1e-5);
  EXPECT_EQ(verdict_of(i, 0.05), Verdict::kNotMeasurable);
}

TEST(Paired, NoDifferenceInFewSamplesIsNoProofOfSameness) {
  const std::vector<double> d(20, 0.0);
  const PairedInterval i = paired_interval(d, ScoreKind::kCount);
  EXPECT_GT(i.high, 0.05);  // 1.96/22 = 0.089
  EXPECT_EQ(verdict_of(i, 0.05), Verdict::kNotMeasurable);
  const std::vector<double> many(40, 0.0);  // 1.96/42 = 0.0467
  EXPECT_EQ(verdict_of(paired_interval(many, ScoreKind::kCount), 0.05), Verdict::kSame);
}

TEST(Paired, LostEverythingIsWorse) {
  const std::vector<double> d(8, -1.0);
  const PairedInterval i = paired_interval(d, ScoreKind::kCount);
  EXPECT_GE(i.low, -1.0);
  EXPECT_LE(i.low, i.mean);
  EXPECT_GE(i.high, i.mean);
  EXPECT_EQ(verdict_of(i, 0.05), Verdict::kWorse);
}

TEST(Paired, TooFewPairsGiveNoVerdict) {
  const std::vector<double> none;
  EXPECT_FALSE(paired_interval(none, ScoreKind::kCount).measurable);
  const std::vector<double> one = {-1};
  EXPECT_FALSE(paired_interval(one, ScoreKind::kMeasurement).measurable);
  const std::vector<double> four(4, -1.0);
  EXPECT_EQ(verdict_of(paired_interval(four, ScoreKind::kMeasurement), 0.05), Verdict::kNotMeasurable);
}

TEST(Paired, BetterWhenTheIntervalIsAboveZero) {
  const std::vector<double> d = {0.2, 0.3, 0.25, 0.22, 0.28, 0.31};
  EXPECT_EQ(verdict_of(paired_interval(d, ScoreKind::kMeasurement), 0.05), Verdict::kBetter);
}

TEST(Quantile, LinearBetweenNeighbours) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(quantile({10, 20, 30, 40, 50}, 0.25), 20);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.95), 9.5);
  EXPECT_DOUBLE_EQ(quantile({7}, 1), 7);
  EXPECT_DOUBLE_EQ(median({}), 0);
}

}  // namespace
}  // namespace kvartet
