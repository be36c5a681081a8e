#include "report/cautions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/report_fixture.h"
#include "report/text_table.h"

namespace kvartet {
namespace {

// `right` of `n` answers of `full` are right, at both lengths; no answer was cut.
StoredResults results_with(int n, int right, const std::string& metric = "contains") {
  StoredResults r = made_results(n);
  r.tasks = {{"needle", metric}};
  for (Outcome& o : r.outcomes) {
    o.finish_reason = "stop";
    if (o.spec == "full") o.score = std::stoi(o.key.sample) < right ? 1 : 0;
  }
  return r;
}

bool is_weak(const StoredResults& results) {
  const std::vector<ReportRow> rows = report_rows(results);
  EXPECT_EQ(rows.front().spec, "full");
  for (const ReportRow& row : rows) EXPECT_EQ(row.weak, row.spec == "full" && rows.front().weak) << row.spec;
  return rows.front().weak;
}

// By hand (paired.h): 3 of 10 right against none: center -3/12, variance 4/12 - 1/16 = 0.2708, half 1.96 sqrt(0.2708 / 12) =
// 0.294, so the interval holds 0. 4 of 10: center -0.3333, half 0.3127: worse.
TEST(Cautions, FullIsWeakWhereNothingRightCouldNotBeToldFromIt) {
  EXPECT_TRUE(is_weak(results_with(10, 0)));
  EXPECT_TRUE(is_weak(results_with(10, 3)));
  EXPECT_FALSE(is_weak(results_with(10, 4)));
  EXPECT_FALSE(is_weak(results_with(10, 10)));
  // Many samples tell a small score; but not one that a single answer more or less would undo.
  EXPECT_FALSE(is_weak(results_with(40, 5)));
  EXPECT_TRUE(is_weak(results_with(40, 1)));
  // Six of ten right are not weak, even where five samples could not show their loss.
  EXPECT_FALSE(is_weak(results_with(5, 3)));
}

TEST(Cautions, WithTooFewDocumentsForVerdictsOneInFiveMustBeRight) {
  EXPECT_TRUE(is_weak(results_with(3, 0)));
  EXPECT_FALSE(is_weak(results_with(3, 1)));
  StoredResults one_document = results_with(10, 1);
  for (SampleRecord& s : one_document.samples) s.document = "the only one";
  EXPECT_TRUE(is_weak(one_document));
  one_document = results_with(10, 2);
  for (SampleRecord& s : one_document.samples) s.document = "the only one";
  EXPECT_FALSE(is_weak(one_document));
}

// A good summary has a ROUGE-L of 20: graded scores are low by nature, and tell caches apart all the same.
TEST(Cautions, GradedScoresAreNotWeakForBeingLow) {
  for (const int n : {3, 10}) {
    StoredResults r = results_with(n, 0, "rouge");
    for (Outcome& o : r.outcomes) {
      if (o.spec == "full") o.score = 0.12 + 0.01 * (o.key.sample.back() % 3);
    }
    EXPECT_FALSE(is_weak(r)) << n;
  }
}

TEST(Cautions, TablesWithoutFullAreNamed) {
  StoredResults results = results_with(10, 10);
  const auto said = [&] {
    std::string all;
    for (const std::string& caveat : report_caveats(results, report_rows(results))) all += caveat + "\n";
    return all;
  };
  EXPECT_EQ(said().find("no answer of full"), std::string::npos) << said();
  const int context = results.outcomes.front().key.context;
  std::erase_if(results.outcomes, [&](const Outcome& o) { return o.spec == "full" && o.key.context == context; });
  EXPECT_NE(said().find(fmt::format("no verdict, on needle at {} tokens;", context)), std::string::npos) << said();
  for (Outcome& o : results.outcomes)
    if (o.spec == "full") o.error = "out of memory";
  EXPECT_NE(said().find(" tokens, needle at "), std::string::npos) << said();
}

TEST(Cautions, NothingIsSaidOfTasksWithoutAScore) {
  StoredResults r = results_with(10, 0, "likelihood");
  for (Outcome& o : r.outcomes) o.score.reset();
  EXPECT_FALSE(is_weak(r));
}

std::vector<std::string> sentences(const StoredResults& results) { return caution_sentences(report_rows(results)); }

bool is_said(const std::vector<std::string>& all, const std::string& text) {
  return std::ranges::any_of(all, [&](const std::string& s) { return s.find(text) != std::string::npos; });
}

TEST(Cautions, OneSentenceForAllTasksAndTheirLengths) {
  StoredResults r = results_with(10, 3);
  ASSERT_EQ(sentences(r).size(), 1U);
  EXPECT_TRUE(is_said(sentences(r), "needle at 2048, 4096 tokens (30.0 of 100 points).")) << sentences(r)[0];
  for (Outcome& o : r.outcomes) {
    if (o.spec == "full" && o.key.context == 4096) o.score = o.key.sample == "0" ? 1 : 0;
  }
  EXPECT_TRUE(is_said(sentences(r), "needle at 2048, 4096 tokens (10.0 to 30.0 of 100 points).")) << sentences(r)[0];
  const std::vector<ReportRow> rows = report_rows(r);
  EXPECT_NE(text_table(r, rows).find("Full itself is weak"), std::string::npos);
  EXPECT_EQ(report_json(r, rows)["rows"][0]["weak"], true);
  EXPECT_EQ(report_json(r, rows)["rows"][1]["weak"], false);

  // A second task with the same trouble lengthens the sentence and does not repeat it.
  r.tasks.push_back({"docqa", "contains"});
  for (std::size_t i = 0, n = r.samples.size(); i < n; ++i) {
    r.samples.push_back(r.samples[i]);
    r.samples.back().key.task = "docqa";
  }
  for (std::size_t i = 0, n = r.outcomes.size(); i < n; ++i) {
    r.outcomes.push_back(r.outcomes[i]);
    r.outcomes.back().key.task = "docqa";
  }
  ASSERT_EQ(sentences(r).size(), 1U);
  EXPECT_TRUE(is_said(sentences(r), "(10.0 to 30.0 of 100 points), docqa at 2048, 4096 tokens (10.0 to 30.0 of 100 points)."))
      << sentences(r)[0];
}

TEST(Cautions, PromptsAreGatheredToo) {
  StoredResults r = made_results(4);
  for (SampleRecord& s : r.samples) s.dropped_tokens = s.key.sample == "0" ? 100 : 0;
  for (SampleRecord& s : r.samples) s.document = s.key.sample == "0" ? "A" : "B";
  const std::vector<std::string> all = prompt_sentences(r);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_TRUE(is_said(all, "needle at 2048, 4096 tokens (4 prompts about 2 documents at each length)")) << all[0];
  EXPECT_TRUE(is_said(all, "lost their middle: needle at 2048, 4096 tokens (2 of 8 prompts).")) << all[1];
}

TEST(Cautions, AnswersCutAtTheLimit) {
  StoredResults r = results_with(10, 10);
  EXPECT_TRUE(sentences(r).empty());
  const auto cut_at_2048 = [&](int answers) {
    for (Outcome& o : r.outcomes) o.finish_reason = o.key.context == 2048 && answers-- > 0 ? "length" : "stop";
  };
  cut_at_2048(5);  // of 30
  EXPECT_TRUE(sentences(r).empty());
  cut_at_2048(6);
  ASSERT_EQ(sentences(r).size(), 1U);
  EXPECT_TRUE(is_said(sentences(r), "needle at 2048 tokens (20 % of the answers, 20 % of those of full).")) << sentences(r)[0];
  EXPECT_EQ(sentences(r)[0].find("max_new"), std::string::npos);
  for (SampleRecord& s : r.samples) s.key.task = "mine.jsonl";
  for (Outcome& o : r.outcomes) o.key.task = "mine.jsonl";
  EXPECT_NE(sentences(r)[0].find("max_new"), std::string::npos);
}

}  // namespace
}  // namespace kvartet
