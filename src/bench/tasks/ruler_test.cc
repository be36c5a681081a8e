#include "bench/tasks/ruler.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "bench/tasks/ruler_words.h"
#include "bench/tasks/task_fixture.h"

namespace kvartet {
namespace {

class Ruler : public TaskFixture {};

TEST_F(Ruler, HasElevenTasksWithRulersAnswerLengths) {
  const std::map<std::string, int> lengths = {{"niah_single_1", 128},
                                              {"niah_single_2", 128},
                                              {"niah_single_3", 128},
                                              {"niah_multikey_1", 128},
                                              {"niah_multikey_2", 128},
                                              {"niah_multikey_3", 128},
                                              {"niah_multivalue", 128},
                                              {"niah_multiquery", 128},
                                              {"vt", 38},
                                              {"cwe", 120},
                                              {"fwe", 50}};
  EXPECT_EQ(ruler_tasks().size(), 11U);
  for (const auto& [name, length] : lengths) {
    EXPECT_EQ(samples("ruler/" + name, 1000, 1)[0].max_new_tokens, length) << name;
    EXPECT_EQ(make_task("ruler/" + name).value()->metric(), "string_match");
  }
}

TEST_F(Ruler, NeedlesHaveTheirCountsAndKinds) {
  const auto statements = [](const Sample& s) { return occurrences(s.document, "A hidden "); };
  EXPECT_EQ(statements(samples("ruler/niah_single_1", 500)[0]), 1U);
  EXPECT_EQ(statements(samples("ruler/niah_multikey_1", 500)[0]), 4U);
  const Sample values = samples("ruler/niah_multivalue", 500)[0];
  EXPECT_EQ(statements(values), 4U);
  EXPECT_EQ(values.answers.size(), 4U);
  const Sample queries = samples("ruler/niah_multiquery", 500)[0];
  EXPECT_EQ(queries.answers.size(), 4U);
  EXPECT_EQ(occurrences(queries.question, "-"), 4U);  // four keys of two words
  EXPECT_GT(statements(samples("ruler/niah_multikey_2", 500)[0]), 30U);
  const Sample identifiers = samples("ruler/niah_multikey_3", 500)[0];
  EXPECT_EQ(identifiers.answers[0].size(), 36U);
  EXPECT_EQ(samples("ruler/niah_single_2", 500)[0].answers[0].size(), 7U);
}

TEST_F(Ruler, TheAnswerStandsInTheGoldSpanOnly) {
  for (const char* spec : {"ruler/niah_single_1", "ruler/niah_single_3", "ruler/niah_multikey_1", "ruler/niah_multikey_2",
                           "ruler/niah_multikey_3"}) {
    for (const Sample& s : samples(spec, 600, 6)) {
      ASSERT_EQ(s.gold_spans.size(), 1U);
      EXPECT_NE(gold_text(s, 0).find(s.answers[0]), std::string::npos) << spec;
      EXPECT_EQ(occurrences(s.document, s.answers[0]), 1U) << spec;
    }
  }
}

TEST_F(Ruler, VariablesFormOneChain) {
  const Sample s = samples("ruler/vt", 500)[0];
  ASSERT_EQ(s.answers.size(), 5U);
  for (std::size_t j = 1; j < 5; ++j) {
    EXPECT_EQ(gold_text(s, j), "VAR " + s.answers[j] + " = VAR " + s.answers[j - 1] + ".");
  }
  const std::string first = gold_text(s, 0);
  EXPECT_NE(s.question.find(first.substr(first.find("= ") + 2, 5)), std::string::npos);
}

std::map<std::string, int> counts(const std::string& text, bool numbered) {
  std::map<std::string, int> out;
  std::istringstream stream(text);
  std::string word;
  for (int i = 0; stream >> word; ++i) {
    if (!numbered || i % 2 == 1) ++out[word];
  }
  return out;
}

TEST_F(Ruler, CommonWordsComeThirtyTimesAndOthersThree) {
  for (const auto& [context, often, seldom] : {std::tuple{5000, 30, 3}, std::tuple{1000, 6, 1}}) {
    const Sample s = samples("ruler/cwe", context)[0];
    const std::map<std::string, int> count = counts(s.document, /*numbered=*/true);
    ASSERT_EQ(s.answers.size(), 10U);
    for (const auto& [word, n] : count) {
      const bool common = std::find(s.answers.begin(), s.answers.end(), word) != s.answers.end();
      EXPECT_EQ(n, common ? often : seldom) << word;
    }
    EXPECT_GT(count.size(), 100U);
  }
}

// Shares of a zeta distribution with exponent 2: 6/pi^2 for the dots, then a quarter, a ninth, a sixteenth of that.
TEST_F(Ruler, FrequentWordsFollowTheZetaDistribution) {
  const Sample s = samples("ruler/fwe", 2000)[0];
  const std::map<std::string, int> count = counts(s.document, /*numbered=*/false);
  const double dots = count.at("....");
  ASSERT_EQ(s.answers.size(), 3U);
  for (std::size_t j = 0; j < 3; ++j) {
    const double rank = static_cast<double>(j) + 2;
    EXPECT_NEAR(count.at(s.answers[j]), dots / (rank * rank), 1);
  }
  int runner_up = 0;
  for (const auto& [word, n] : count) {
    const bool asked = word == "...." || std::find(s.answers.begin(), s.answers.end(), word) != s.answers.end();
    if (!asked) runner_up = std::max(runner_up, n);
  }
  EXPECT_LT(runner_up, count.at(s.answers[2]));
}

TEST(RulerWords, AreAllDifferent) {
  std::set<std::string> words;
  for (std::size_t i = 0; i < kPlainWords; ++i) words.insert(plain_word(i));
  EXPECT_EQ(words.size(), kPlainWords);
}

}  // namespace
}  // namespace kvartet
