#include "bench/metrics/qa_match.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

using Words = std::vector<std::string>;

double f1(std::string_view prediction, const Words& references) { return qa_f1(prediction, references, {}); }

TEST(QaMatch, TableOfSection13_2) {
  struct {
    const char* prediction;
    const char* reference;
    double expected;
  } const cases[] = {
      {"The Eiffel Tower, in Paris.", "Eiffel Tower", 0.666667},
      {"It was Dr. Ada Lovelace-Byron", "Ada Lovelace", 0.285714},
      {"an A-team", "team", 0},
      {"a the an", "x", 0},
      {"two two three", "two three three", 0.666667},
      {"don't", "dont", 1},
      {"Paris\nQuestion: who", "Paris", 0.5},
  };
  for (const auto& c : cases) EXPECT_NEAR(f1(c.prediction, {c.reference}), c.expected, 5e-7) << c.prediction;
}

TEST(QaMatch, FirstLineRuleOfSection13_1) {
  const Metric* metric = find_metric("f1");
  ASSERT_NE(metric, nullptr);
  const Words references{"Paris"};
  EXPECT_EQ(score_answer(*metric, AnswerCut::kFirstLine, "Paris\nQuestion: who", references, {}), 1.0);
  EXPECT_EQ(cut_answer(AnswerCut::kFirstLine, "\n\n Paris \nx"), " Paris ");  // newlines only, spaces stay
  EXPECT_EQ(cut_answer(AnswerCut::kFirstLine, "\n\n"), "");
  EXPECT_EQ(cut_answer(AnswerCut::kFirstLine, " \nx"), " ");
  EXPECT_EQ(cut_answer(AnswerCut::kNone, "\na\nb"), "\na\nb");
}

TEST(QaMatch, BestReferenceCounts) {
  EXPECT_EQ(f1("paris", {"london", "Paris", "rome"}), 1.0);
  EXPECT_EQ(f1("paris", {}), 0.0);
}

TEST(QaMatch, EmptySidesScoreZero) {
  EXPECT_EQ(f1("", {"x"}), 0.0);
  EXPECT_EQ(f1("x", {""}), 0.0);
  EXPECT_EQ(f1("the", {"a"}), 0.0);  // equal, but both are empty once normalized
}

TEST(QaMatch, ArticlesAreWholeUnicodeWords) {
  EXPECT_EQ(squad_tokens("Thé a–team an\u00e9 \u00e0 the2 THE"),
            (std::vector<std::u32string>{U"thé", U"–team", U"ané", U"à", U"the2"}));
}

TEST(QaMatch, ExactMatchStylesOfSection13_3) {
  const auto squad = [](std::string_view p, const Words& r) { return exact_match_squad(p, r, {}); };
  const auto trivia = [](std::string_view p, const Words& r) { return exact_match_triviaqa(p, r, {}); };
  EXPECT_EQ(squad("The Eiffel Tower, in Paris.", {"Eiffel Tower"}), 0.0);
  EXPECT_EQ(squad("The Eiffel Tower.", {"x", "eiffel tower"}), 1.0);
  EXPECT_EQ(squad("A-team", {"team"}), 0.0);
  EXPECT_EQ(trivia("A-team", {"team"}), 1.0);
  EXPECT_EQ(trivia("rock_n_roll", {"Rock n roll"}), 1.0);
  EXPECT_EQ(squad("rock_n_roll", {"Rock n roll"}), 0.0);
  EXPECT_EQ(trivia("\u2018O\u2019Neil\u00b4 `x`", {"o neil x"}), 1.0);
}

TEST(QaMatch, LowerCasesBeyondAscii) { EXPECT_EQ(f1("ÉCOLE ПРАВДА", {"école правда"}), 1.0); }

}  // namespace
}  // namespace kvartet
