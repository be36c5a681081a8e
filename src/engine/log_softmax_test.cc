#include "engine/log_softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/rng.h"

namespace kvartet {
namespace {

TEST(LogSoftmax, AgreesWithLongDouble) {
  Rng rng(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> logits(1 + rng.below(5000));
    for (float& l : logits) l = static_cast<float>(8 * rng.normal());
    long double sum = 0;
    for (const float l : logits) sum += std::exp(static_cast<long double>(l));
    for (int token : {0, static_cast<int>(logits.size()) - 1}) {
      const auto expected =
          static_cast<double>(static_cast<long double>(logits[static_cast<std::size_t>(token)]) - std::log(sum));
      EXPECT_NEAR(log_probability(logits, token), expected, 1e-12);
    }
  }
}

TEST(LogSoftmax, ProbabilitiesSumToOneAtAnyOffset) {
  for (const float offset : {-3e4F, 0.0F, 3e4F}) {
    const std::vector<float> logits = {offset, offset + 1, offset - 2, offset};
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += std::exp(log_probability(logits, i));
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
}

TEST(LogSoftmax, InfiniteLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(log_probability(std::vector<float>{0, -inf}, 1), -inf);
  EXPECT_EQ(log_probability(std::vector<float>{0, -inf}, 0), 0.0);
  EXPECT_EQ(log_sum_exp({}), -inf);
}

}  // namespace
}  // namespace kvartet
