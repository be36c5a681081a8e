#include "bench/metrics/code_similarity.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvartet {
namespace {

using Words = std::vector<std::string>;

TEST(CodeSimilarity, ExamplesOfSection13_6) {
  EXPECT_EQ(fuzzy_ratio("self.foo(bar)", "self.bar(foo)"), 69);
  EXPECT_EQ(code_similarity("self.foo(bar)", Words{"self.bar(foo)"}, {}), 0.69);
  EXPECT_EQ(fuzzy_ratio("", ""), 100);
  EXPECT_EQ(fuzzy_ratio("same", "same"), 100);
  EXPECT_EQ(fuzzy_ratio("", "x"), 0);
  EXPECT_EQ(fuzzy_ratio("x", ""), 0);
}

TEST(CodeSimilarity, RoundsHalfToEven) {
  // 2 * 1 / 16 = 12.5 % and 2 * 3 / 16 = 37.5 %.
  EXPECT_EQ(fuzzy_ratio("abbbbbbb", "accccccc"), 12);
  EXPECT_EQ(fuzzy_ratio("aaabbbbb", "aaaccccc"), 38);
}

TEST(CodeSimilarity, CountsCharactersNotBytes) { EXPECT_EQ(fuzzy_ratio("éa", "éb"), 50); }

TEST(CodeSimilarity, TakesTheFirstLineOfCode) {
  EXPECT_EQ(first_code_line("\n\n```python\n# a comment\n// another\nreturn x\nreturn y"), "return x");
  EXPECT_EQ(first_code_line("\n\n  x = 1"), "  x = 1");
  EXPECT_EQ(first_code_line("# only\n# comments"), "");
  EXPECT_EQ(first_code_line("# then an empty line\n\nreturn"), "");  // an empty line is a line without marks
  EXPECT_EQ(first_code_line(""), "");
}

}  // namespace
}  // namespace kvartet
