#include "bench/score.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file_system.h"

namespace kvartet {
namespace {

Result<ScoreReport> score(std::string_view task_spec, std::string_view text, std::string_view metric = {}) {
  KV_ASSIGN(const auto task, make_task(task_spec, metric));
  return score_predictions(*task, text, "preds.jsonl");
}

TEST(Score, MeanInPercentRoundedToTwoDecimals) {
  const auto report =
      score("longbench/hotpotqa", R"({"pred":"Paris","answers":["Paris"],"all_classes":null,"length":100,"spec":"full"}
{"pred":"Rome","answers":["Paris"],"all_classes":null,"length":4000}
{"pred":"the Eiffel tower in Paris","answers":["Eiffel Tower","x"],"all_classes":[],"length":8000}
)");
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->task, "longbench/hotpotqa");
  EXPECT_EQ(report->metric, "f1");
  EXPECT_EQ(report->n, 3);
  EXPECT_EQ(report->score, 55.56);        // (1 + 0 + 2/3) / 3
  ASSERT_EQ(report->buckets.size(), 3U);  // section 13.1: < 4000, < 8000, rest
  EXPECT_EQ(report->buckets[0].score, 100.0);
  EXPECT_EQ(report->buckets[1].score, 0.0);
  EXPECT_EQ(report->buckets[2].score, 66.67);
}

TEST(Score, RoundsAsPythonDoes) {
  EXPECT_EQ(percent_score(0.125, 100), 0.12);  // exactly between: to even
  EXPECT_EQ(percent_score(2.675, 100), 2.67);  // the double is below 2.675
  EXPECT_EQ(percent_score(1.0, 3), 33.33);
}

// Section 13.1: triviaqa is scored on its first line, hotpotqa on the whole answer.
TEST(Score, FirstLineRuleBelongsToTheSet) {
  constexpr std::string_view kLine = R"({"pred":"\nParis\nQuestion: who","answers":["Paris"]})";
  EXPECT_EQ(score("longbench/triviaqa", kLine)->score, 100.0);
  EXPECT_EQ(score("longbench/hotpotqa", kLine)->score, 50.0);
}

TEST(Score, EachSetFindsItsMetric) {
  EXPECT_EQ(score("longbench/trec", R"({"pred":"Date","answers":["Date"],"all_classes":["Date","City"]})")->score, 100.0);
  EXPECT_EQ(score("longbench/samsum", R"({"pred":"a b\nc","answers":["a b"]})")->score, 100.0);
  EXPECT_EQ(score("longbench/passage_count", R"({"pred":"5 or 6","answers":["5"]})")->score, 50.0);
  EXPECT_EQ(score("longbench/passage_retrieval_en", R"({"pred":"Paragraph 5","answers":["Paragraph 5"]})")->score, 100.0);
  EXPECT_EQ(score("longbench/lcc", R"x({"pred":"self.foo(bar)","answers":["self.bar(foo)"]})x")->score, 69.0);
}

// user-needs C20: bad lines are named, the good ones scored.
TEST(Score, C20NamesBadLinesAndScoresTheRest) {
  using namespace std::string_literals;
  const std::string text =
      "\xEF\xBB\xBF"
      "{\"pred\":\"Paris\",\"answers\":[\"Paris\"],\"id\":\"a\"}\r\n"
      "\r\n"
      "{\"pred\":\"Paris\"}\n"
      "{\"pred\":\"Paris\",\"answers\":[]}\n"
      "{\"pred\":\"Paris\",\"answers\":[\"Paris\"],\"id\":\"a\"}\n"
      "{\"pred\":\"Par\0is\",\"answers\":[\"Paris\"]}\n"
      "{\"pred\":\"Par\xC3\",\"answers\":[\"Paris\"]}\n"
      "{\"pred\":\"Paris\",\"answers\":[\"Par"s;
  const auto report = score("longbench/hotpotqa", text);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->n, 1);
  EXPECT_EQ(report->score, 100.0);
  ASSERT_EQ(report->skipped.size(), 6U);
  const int lines[] = {3, 4, 5, 6, 7, 8};
  const char* const reasons[] = {"answers is missing", "answers is empty", "repeats the id a of line 1", "NUL", "UTF-8",
                                 "broken JSON"};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(report->skipped[i].where(), "preds.jsonl:" + std::to_string(lines[i]));
    EXPECT_NE(report->skipped[i].reason.find(reasons[i]), std::string::npos) << report->skipped[i].reason;
  }
}

TEST(Score, ClassificationWithoutClassesIsABadLine) {
  const auto report = score("longbench/trec", R"({"pred":"Date","answers":["Date"],"all_classes":null})");
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->n, 0);
  ASSERT_EQ(report->skipped.size(), 1U);
  EXPECT_NE(report->skipped[0].reason.find("all_classes"), std::string::npos);
}

// offloading.md 13.2: bad gold records leave the denominator; format and retrieval failures are counted apart.
TEST(Score, Text2JsonPartsAndBadRecords) {
  const std::string gold = R"("[{\"name\":\"A\",\"x\":\"1\",\"y\":\"2\"},{\"name\":\"B\",\"x\":\"3\",\"y\":\"4\"}]")";
  const std::string text =
      R"({"pred":"[{\"name\":\"A\",\"x\":\"1\",\"y\":\"2\"}]","answers":)" + gold + "}\n" +  // 0.5
      R"({"pred":"none","answers":)" + gold + "}\n" +                                        // 0, format
      R"({"pred":"[{\"name\":\"A\",\"x\":true}]","answers":)" + gold + "}\n" +               // 0.125
      R"x({"pred":"[]","answers":"[{\"name\":\"A\",\"x\":\"1\",\"y\":\"2\"},{\"name\":\"A\",\"x\":\"1\",\"y\":\"2\"}]"})x";
  const ScoreReport robust = score("text2json", text).value();
  EXPECT_EQ(robust.n, 3);
  EXPECT_EQ(robust.score, 20.83);
  ASSERT_EQ(robust.parts.size(), 3U);
  EXPECT_EQ(robust.parts[0].name, "format_failures");
  EXPECT_EQ(robust.parts[0].percent, 33.33);
  EXPECT_EQ(robust.parts[1].percent, 66.67);
  ASSERT_EQ(robust.skipped.size(), 1U);
  const ScoreReport strict = score("text2json:scorer=strict", text).value();
  EXPECT_EQ(strict.n, 2);
  ASSERT_EQ(strict.skipped.size(), 2U);
  EXPECT_NE(strict.skipped[0].reason.find("released scorer"), std::string::npos);
}

// offloading.md 13.4: means of precision, recall, F1 and extraction rate.
TEST(Score, HtmlToTsvParts) {
  const ScoreReport report = score("longproc/html_to_tsv:group=2k",
                                   "{\"pred\":\"```tsv\\nn\\tp\\nA\\t1\\nC\\t3\\n```\",\"answers\":[\"n\\tp\\nA\\t1\\n\"]}\n"
                                   "{\"pred\":\"no\",\"answers\":[\"n\\tp\\nA\\t1\\n\"]}\n")
                                 .value();
  EXPECT_EQ(report.score, 33.33);
  ASSERT_EQ(report.parts.size(), 4U);
  EXPECT_EQ(report.parts[0].percent, 25);
  EXPECT_EQ(report.parts[1].percent, 50);
  EXPECT_EQ(report.parts[3].percent, 50);
}

TEST(Score, RefusesWhatCannotBeScored) {
  EXPECT_EQ(score("longbench/hotpotqa", "\n").status().code(), Code::kBadInput);
  EXPECT_EQ(score("my.jsonl", "{}", "likelihood").status().code(), Code::kUsage);
  EXPECT_EQ(score("my.jsonl", R"({"pred":"in Paris","answers":["Paris"]})", "contains")->score, 100.0);
}

// Published predictions, re-scored: the proof that these metrics are LongBench's.
TEST(Score, PublishedPredictionsToTwoDecimals) {
  const char* data = std::getenv("KVARTET_DATA");
  const std::string folder = std::string(data == nullptr ? "" : data) + "/paper_predictions";
  FileSystem& files = FileSystem::real();
  if (data == nullptr || !files.exists(folder + "/expected_scores.json")) {
    GTEST_SKIP() << "skipped: set KVARTET_DATA to a folder that holds paper_predictions/";
  }
  const auto expected = nlohmann::json::parse(files.read_file(folder + "/expected_scores.json").value(), nullptr, false);
  ASSERT_TRUE(expected.is_object());
  int checked = 0;
  for (const auto& [run, sets] : expected.items()) {
    for (const auto& [set, value] : sets.items()) {
      const auto text = files.read_file(folder + "/" + run + "/" + set + ".jsonl");
      ASSERT_TRUE(text.ok()) << text.status().message();
      const auto report = score("longbench/" + set, text.value());
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_TRUE(report->skipped.empty());
      EXPECT_EQ(report->score, value.get<double>()) << run << " " << set;
      ++checked;
    }
  }
  EXPECT_EQ(checked, 12);
}

}  // namespace
}  // namespace kvartet
