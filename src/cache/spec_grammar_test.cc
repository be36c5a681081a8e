#include "cache/spec_grammar.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvartet {
namespace {

const std::vector<std::string_view> kNames = {"f1", "contains", "count", "rouge"};

TEST(SpecGrammar, OnlyAMisspelledNameIsLikely) {
  EXPECT_EQ(likely_name("rogue", kNames), "rouge");
  EXPECT_EQ(likely_name("ROUGE", kNames), "rouge");
  EXPECT_EQ(likely_name("contain", kNames), "contains");
  EXPECT_EQ(likely_name("f2", kNames), "f1");                // half of the letters
  EXPECT_EQ(likely_name("accuracy", kNames), std::nullopt);  // "count" is the least far
  EXPECT_EQ(likely_name("", kNames), std::nullopt);
  EXPECT_EQ(likely_name("x", {}), std::nullopt);
}

TEST(SpecGrammar, HintsNameTheNearestOrAll) {
  EXPECT_EQ(choice_hint("rogue", kNames), "the nearest is rouge (choose f1, contains, count or rouge)");
  EXPECT_EQ(choice_hint("rogue", kNames, "metric="), "the nearest is metric=rouge (choose f1, contains, count or rouge)");
  EXPECT_EQ(choice_hint("accuracy", kNames), "choose f1, contains, count or rouge");
}

}  // namespace
}  // namespace kvartet
