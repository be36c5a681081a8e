#include "results/paired.h"

#include <gtest/gtest.h>

#include <cmath>
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

// docs/decisions/0012: the units are documents. Three of two questions each have the means -0.03, -0.01, -0.05: s^2 = 0.0004,
// standard error sqrt(0.0004 / 3) = 0.0115470, Student's t with two degrees of freedom 4.302653.
TEST(Paired, DocumentsOfEquallyManyQuestionsByHand) {
  const PairedDifferences d = {{-0.02, 0.0, -0.04, -0.06, -0.02, -0.04}, {7, 3, 7, 5, 3, 5}};
  const PairedInterval i = paired_interval(d, ScoreKind::kMeasurement);
  EXPECT_EQ(i.n, 6);
  EXPECT_EQ(i.documents, 3);
  EXPECT_NEAR(i.mean, -0.03, 1e-12);
  EXPECT_NEAR(i.high, -0.03 + 0.049683, 1e-6);
  EXPECT_NEAR(i.low, -0.03 - 0.049683, 1e-6);
  // The six differences as if they were independent would claim 0.0220.
  EXPECT_LT(paired_interval(std::span(d.values), ScoreKind::kMeasurement).high, -0.03 + 0.0221);
  EXPECT_EQ(verdict_of(i, 1), Verdict::kNotMeasurable) << "three documents are too few, however many questions";
}

// One, two and three questions, mean 0.1. Without each document in turn the mean is 0.06, 0.15 and 0.1, so the jackknife
// variance is 2/3 (0.04^2 + 0.05^2 + 0) = 0.0027333; 4.302653 sqrt of it = 0.224949.
TEST(Paired, DocumentsOfUnequallyManyQuestionsByHand) {
  const PairedDifferences d = {{0.3, 0.0, 0.0, 0.1, 0.1, 0.1}, {1, 2, 2, 3, 3, 3}};
  const PairedInterval i = paired_interval(d, ScoreKind::kMeasurement);
  EXPECT_NEAR(i.mean, 0.1, 1e-12);
  EXPECT_NEAR(i.high - i.mean, 0.224949, 1e-5);
  EXPECT_NEAR(i.mean - i.low, 0.224949, 1e-5);
}

// Ten documents of four questions; two answers are lost in one of them: units -0.5 and nine zeros. Center -0.5/12, variance
// 1.25/12 - (0.5/12)^2 = 0.102431, half 1.96 sqrt(0.102431/12) = 0.181081.
TEST(Paired, CountsOfDocumentsByHand) {
  PairedDifferences d;
  for (int pair = 0; pair < 40; ++pair) d.add(pair == 4 || pair == 6 ? -1 : 0, pair / 4);
  const PairedInterval i = paired_interval(d, ScoreKind::kCount);
  EXPECT_NEAR(i.mean, -0.05, 1e-12);
  EXPECT_NEAR(i.low, -0.5 / 12 - 0.181081, 1e-5);
  EXPECT_NEAR(i.high, -0.5 / 12 + 0.181081, 1e-5);
}

TEST(Paired, OneQuestionForEachDocumentGivesTheBitsOfPairs) {
  PairedDifferences d;
  for (int i = 0; i < 23; ++i) d.add(std::sin(i), 100 - i);
  for (const ScoreKind kind : {ScoreKind::kMeasurement, ScoreKind::kCount}) {
    const PairedInterval by_document = paired_interval(d, kind);
    const PairedInterval by_pair = paired_interval(std::span(d.values), kind);
    EXPECT_EQ(by_document.mean, by_pair.mean);
    EXPECT_EQ(by_document.low, by_pair.low);
    EXPECT_EQ(by_document.high, by_pair.high);
    EXPECT_EQ(by_document.documents, 23);
  }
}

TEST(Paired, OneDocumentIsNoSample) {
  const PairedDifferences d = {{0.1, 0.2, 0.3, 0.1, 0.2, 0.3}, {1, 1, 1, 1, 1, 1}};
  EXPECT_FALSE(paired_interval(d, ScoreKind::kMeasurement).measurable);
  EXPECT_EQ(verdict_of(paired_interval(d, ScoreKind::kCount), 0.05), Verdict::kNotMeasurable);
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

// docs/decisions/0013: at most 5 points, a tenth where full scores less than half, never less than half a point.
TEST(Paired, TheMarginOfAScoreIsATenthOfASmallReference) {
  EXPECT_DOUBLE_EQ(score_margin(1), 0.05);
  EXPECT_DOUBLE_EQ(score_margin(0.5), 0.05);
  EXPECT_DOUBLE_EQ(score_margin(0.18), 0.018);
  EXPECT_DOUBLE_EQ(score_margin(0), 0.005);
  const std::vector<double> lost = {-0.03, -0.032, -0.028, -0.03, -0.031, -0.029};
  EXPECT_EQ(verdict_of(paired_interval(lost, ScoreKind::kMeasurement), score_margin(0.9)), Verdict::kSame);
  EXPECT_EQ(verdict_of(paired_interval(lost, ScoreKind::kMeasurement), score_margin(0.18)), Verdict::kWorse);
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
