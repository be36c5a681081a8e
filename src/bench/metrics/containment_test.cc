#include "bench/metrics/containment.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvartet {
namespace {

using Words = std::vector<std::string>;

TEST(Containment, AnyReferenceLetterForLetter) {
  EXPECT_EQ(contains_any("It is in Paris.", Words{"London", "Paris"}, {}), 1.0);
  EXPECT_EQ(contains_any("it is in paris.", Words{"Paris"}, {}), 0.0);
  EXPECT_EQ(contains_any("anything", Words{""}, {}), 0.0);
}

// The worked example of offloading.md 13.3: 2 samples, 3 needles, hits (1,1,0) and (1,0,0), final 50.
TEST(Containment, KeywordShareIsMeanNeedleRecall) {
  const Words keywords{"amber", "birch", "cedar"};
  const double sum = keyword_share("birch, then amber", keywords, {}) + keyword_share("amber", keywords, {});
  EXPECT_NEAR(100 * sum / 2, 50.0, 1e-12);
  EXPECT_EQ(keyword_share("x", {}, {}), 0.0);
}

TEST(Containment, JsonIsComparedAsAValue) {
  const Words gold{R"({"a": 1, "b": [true, null, "x"]})"};
  EXPECT_EQ(json_equal(R"({"b":[true,null,"x"],"a":1.0})", gold, {}), 1.0);
  EXPECT_EQ(json_equal("```json\n{\"a\": 1, \"b\": [true, null, \"x\"]}\n```", gold, {}), 1.0);
  EXPECT_EQ(json_equal(R"({"a": 1, "b": [null, true, "x"]})", gold, {}), 0.0);
  EXPECT_EQ(json_equal("not json", gold, {}), 0.0);
  EXPECT_EQ(json_equal("not json", Words{"not json"}, {}), 0.0);  // a discarded value equals nothing
  EXPECT_EQ(json_equal("", gold, {}), 0.0);
  EXPECT_EQ(json_equal("```", gold, {}), 0.0);
}

// RULER's score: share of the references found, letter case aside.
TEST(Containment, StringMatchIgnoresCase) {
  const Words gold{"Amber-Otter", "4821907", "\u00c9cole"};
  EXPECT_DOUBLE_EQ(string_match("amber-otter has 4821907", gold, {}), 2.0 / 3);
  EXPECT_EQ(string_match("\u00e9COLE AMBER-OTTER x4821907x", gold, {}), 1.0);
  EXPECT_EQ(string_match("", gold, {}), 0.0);
  EXPECT_EQ(string_match("x", {}, {}), 0.0);
}

TEST(Containment, JsonIsFoundInAnAnswer) {
  const Words gold{R"({"a": [1, 2]})"};
  EXPECT_EQ(json_equal("Here it is:\n```json\n{\"a\": [1, 2]}\n```\nDone.", gold, {}), 1.0);
  EXPECT_EQ(json_equal("The result is {\"a\": [1, 2]}, as asked.", gold, {}), 1.0);
  EXPECT_EQ(json_equal("The result is {\"a\": [2, 1]}, as asked.", gold, {}), 0.0);
  EXPECT_EQ(json_equal("5", Words{"5", "6"}, {}), 1.0);
  EXPECT_TRUE(check_json("", gold, {}).ok());
  EXPECT_NE(check_json("", Words{"1", "{"}, {}).message().find("answer 2"), std::string::npos);
}

TEST(Containment, DeepJsonIsNoMatchAndNoCrash) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_EQ(json_equal(deep, Words{deep}, {}), 0.0);
}

}  // namespace
}  // namespace kvartet
