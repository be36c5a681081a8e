#include "bench/fidelity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace kvartet {
namespace {

std::vector<float> logs(std::initializer_list<double> p) {
  std::vector<float> out;
  for (double x : p) out.push_back(static_cast<float>(std::log(x) + 3));  // a constant shift changes nothing
  return out;
}

// DESIGN 6, fidelity: hand-computed.
TEST(Fidelity, KlAgreementAndPerplexityByHand) {
  LogitComparison c;
  // KL((1/2, 1/4, 1/4) || (1/4, 1/2, 1/4)) = 1/2 ln 2 - 1/4 ln 2 = 0.173287
  c.add(logs({0.5, 0.25, 0.25}), logs({0.25, 0.5, 0.25}), 0);
  EXPECT_NEAR(c.kl_mean(), 0.25 * std::log(2.0), 1e-6);
  EXPECT_DOUBLE_EQ(c.top1_agreement(), 0);
  EXPECT_NEAR(c.perplexity(), 4, 1e-5);
  EXPECT_NEAR(c.reference_perplexity(), 2, 1e-5);

  c.add(logs({0.5, 0.25, 0.25}), logs({0.5, 0.25, 0.25}), 1);
  EXPECT_EQ(c.tokens(), 2);
  EXPECT_NEAR(c.kl_mean(), 0.125 * std::log(2.0), 1e-6);
  EXPECT_NEAR(c.kl_sd(), 0.25 * std::log(2.0) / std::sqrt(2.0), 1e-6);
  EXPECT_NEAR(c.kl_quantile(0.99), 0.25 * std::log(2.0), 1e-6);
  EXPECT_DOUBLE_EQ(c.top1_agreement(), 0.5);
  EXPECT_NEAR(c.perplexity(), 4, 1e-5);  // sqrt(4 * 4)
}

TEST(Fidelity, KlIsZeroForEqualLogitsAndNotSymmetric) {
  LogitComparison same;
  same.add(logs({0.1, 0.2, 0.7}), logs({0.1, 0.2, 0.7}), 2);
  EXPECT_EQ(same.kl_mean(), 0);
  LogitComparison ab;
  LogitComparison ba;
  ab.add(logs({0.9, 0.1}), logs({0.5, 0.5}), 0);
  ba.add(logs({0.5, 0.5}), logs({0.9, 0.1}), 0);
  EXPECT_NEAR(ab.kl_mean(), 0.9 * std::log(1.8) + 0.1 * std::log(0.2), 1e-6);
  EXPECT_NEAR(ba.kl_mean(), 0.5 * std::log(5.0 / 9) + 0.5 * std::log(5.0), 1e-6);
}

TEST(Fidelity, P99IsTheNearestRank) {
  LogitComparison c;
  for (int i = 0; i < 200; ++i) {
    // Two outliers in 200: the rank 198 value is still small.
    const bool outlier = i == 50 || i == 150;
    c.add(logs({0.5, 0.5}), outlier ? logs({0.01, 0.99}) : logs({0.5, 0.5}), 0);
  }
  EXPECT_EQ(c.kl_quantile(0.99), 0);
  EXPECT_GT(c.kl_quantile(1), 1);
  c.add(logs({0.5, 0.5}), logs({0.01, 0.99}), 0);  // 3 in 201: rank ceil(198.99) = 199 is an outlier
  EXPECT_GT(c.kl_quantile(0.99), 1);
}

TEST(Fidelity, JsonKeepsTheReferenceOutOfTheRows) {
  FidelityReport report = {.reference_spec = "full", .prefix_tokens = 100, .tokens = 10, .reference_perplexity = 9.5, .rows = {}};
  report.rows.push_back({.spec = "q8_0", .tokens = 10, .kl_mean = 1e-4, .kl_p99 = 1e-3, .top1_agreement = 1, .perplexity = 9.6});
  const nlohmann::json json = fidelity_json(report);
  EXPECT_EQ(json["reference"]["spec"], "full");
  EXPECT_EQ(json["reference"]["tokens"], 10);
  ASSERT_EQ(json["rows"].size(), 1U);
  EXPECT_EQ(json["rows"][0]["spec"], "q8_0");
  EXPECT_NE(fidelity_table(report).find("q8_0"), std::string::npos);
}

}  // namespace
}  // namespace kvartet
