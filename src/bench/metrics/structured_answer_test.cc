#include "bench/metrics/structured_answer.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

using Words = std::vector<std::string>;

TEST(StructuredAnswer, OrderCaseAndSpaceDoNotMatter) {
  const Words gold{R"({"Reference": ["Paper A", "Paper B"], "Citation": []})"};
  EXPECT_EQ(structured_match(R"(The answer is {"reference": ["paper b", " Paper  A"], "Citation": []}.)", gold, {}), 1);
  EXPECT_EQ(structured_match(R"({"Reference": ["Paper A"], "Citation": ["Paper B"]})", gold, {}), 0);
  EXPECT_EQ(structured_match(R"({"Reference": ["Paper A", "Paper B", "Paper B"]})", gold, {}), 0);
  EXPECT_EQ(structured_match("Paper A, Paper B", gold, {}), 0);
}

TEST(StructuredAnswer, PartsCountOverlapAndFormat) {
  const Words gold{R"({"x": ["a", "b"], "y": ["c", 5]})"};
  EXPECT_EQ(structured_parts(R"({"x": ["a"], "y": [5]})", gold, {})[0].value, 2.0 * 2 / 6);
  EXPECT_EQ(structured_parts("none", gold, {})[1].value, 1);
  EXPECT_EQ(structured_parts("[]", Words{"[]"}, {})[0].value, 1);
  EXPECT_TRUE(check_structured("", gold, {}).ok());
  EXPECT_FALSE(check_structured("", Words{"A sentence."}, {}).ok());
  EXPECT_FALSE(check_structured("", Words{"\"text\""}, {}).ok());
}

}  // namespace
}  // namespace kvartet
