#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/rng.h"

namespace kvartet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Token must_sample(const std::vector<float>& logits, const SamplingOptions& options, std::uint64_t step) {
  const Result<Token> token = sample(logits, options, step);
  EXPECT_TRUE(token.ok()) << token.status().message();
  return token.ok() ? *token : -1;
}

TEST(Sampler, GreedyTakesTheLowestOfEqualTokens) {
  EXPECT_EQ(must_sample({1, 5, 5, 4}, {}, 0), 1);
  EXPECT_EQ(must_sample({-3, -3}, {}, 7), 0);
  EXPECT_EQ(must_sample({-kInf, -7, -kInf}, {}, 0), 1);
}

TEST(Sampler, DamagedLogitsAreAnError) {
  EXPECT_EQ(sample(std::vector<float>{0, NAN, 1}, {}, 0).status().code(), Code::kBadInput);
  EXPECT_EQ(sample(std::vector<float>{-kInf, -kInf}, {}, 0).status().code(), Code::kBadInput);
  EXPECT_EQ(sample(std::vector<float>{0, kInf}, {}, 0).status().code(), Code::kBadInput);
  EXPECT_EQ(sample(std::vector<float>{}, {}, 0).status().code(), Code::kBadInput);
}

TEST(Sampler, SenselessOptionsAreRefused) {
  EXPECT_TRUE(check_sampling({}).ok());
  EXPECT_TRUE(check_sampling({.temperature = 2, .top_p = 1e-9}).ok());
  for (const double t : {-0.1, static_cast<double>(NAN), static_cast<double>(kInf)}) {
    EXPECT_EQ(check_sampling({.temperature = t}).code(), Code::kUsage) << t;
  }
  for (const double p : {0.0, -1.0, 1.01, static_cast<double>(NAN)})
    EXPECT_EQ(check_sampling({.top_p = p}).code(), Code::kUsage) << p;
}

TEST(Sampler, ADrawDependsOnlyOnSeedAndStep) {
  std::vector<float> logits(1000);
  Rng rng(5);
  for (float& l : logits) l = static_cast<float>(rng.normal());
  const SamplingOptions options{.temperature = 1, .top_p = 0.9, .seed = 42};
  std::vector<Token> forward;
  for (std::uint64_t step = 0; step < 50; ++step) forward.push_back(must_sample(logits, options, step));
  for (std::uint64_t step = 50; step-- > 0;) EXPECT_EQ(must_sample(logits, options, step), forward[step]);
  SamplingOptions other = options;
  other.seed = 43;
  int equal = 0;
  for (std::uint64_t step = 0; step < 50; ++step) equal += must_sample(logits, other, step) == forward[step] ? 1 : 0;
  EXPECT_LT(equal, 10);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {1.0F, 0.0F, 2.0F, -1.0F};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    double sum = 0;
    for (const float l : logits) sum += std::exp(l / temperature);
    constexpr int kDraws = 40000;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; ++i)
      ++counts[static_cast<std::size_t>(must_sample(logits, {.temperature = temperature}, static_cast<std::uint64_t>(i)))];
    for (std::size_t t = 0; t < logits.size(); ++t) {
      const double p = std::exp(logits[t] / temperature) / sum;
      EXPECT_NEAR(static_cast<double>(counts[t]) / kDraws, p, 5 * std::sqrt(p * (1 - p) / kDraws))
          << "token " << t << " at " << temperature;
    }
  }
}

// The nucleus by its definition: all tokens sorted, taken until they hold top_p.
std::vector<Token> nucleus(const std::vector<float>& logits, double top_p) {
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](Token a, Token b) { return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]; });
  double total = 0;
  for (const float l : logits) total += std::exp(l);
  double held = 0;
  std::vector<Token> kept;
  for (const Token t : order) {
    if (held >= top_p * total) break;
    held += std::exp(logits[static_cast<std::size_t>(t)]);
    kept.push_back(t);
  }
  return kept;
}

TEST(Sampler, TopPDrawsExactlyFromTheNucleus) {
  Rng rng(9);
  for (const double top_p : {0.05, 0.5, 0.9, 0.99}) {
    std::vector<float> logits(60);
    for (float& l : logits) l = static_cast<float>(std::round(2 * rng.normal()));  // rounded: ties at the border
    const std::vector<Token> allowed = nucleus(logits, top_p);
    std::vector<int> counts(logits.size());
    for (std::uint64_t i = 0; i < 20000; ++i)
      ++counts[static_cast<std::size_t>(must_sample(logits, {.temperature = 1, .top_p = top_p}, i))];
    double held = 0;
    for (const Token t : allowed) held += std::exp(logits[static_cast<std::size_t>(t)]);
    for (std::size_t t = 0; t < logits.size(); ++t) {
      const bool inside = std::find(allowed.begin(), allowed.end(), static_cast<Token>(t)) != allowed.end();
      const double p = inside ? std::exp(logits[t]) / held : 0.0;
      EXPECT_NEAR(counts[t] / 20000.0, p, 5 * std::sqrt(p * (1 - p) / 20000) + 1e-12) << "token " << t << " at " << top_p;
    }
  }
}

TEST(Sampler, TinyTopPIsGreedy) {
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(must_sample({1, 3, 3, 2}, {.temperature = 1, .top_p = 1e-9}, i), 1);
}

}  // namespace
}  // namespace kvartet
