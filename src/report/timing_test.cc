#include "report/timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/positions.h"
#include "report/report_fixture.h"
#include "report/text_table.h"

namespace kvartet {
namespace {

constexpr const char* kTwo = "kivi:bits=2,group=32,residual=128";

const ReportRow& row_of(const std::vector<ReportRow>& rows, const std::string& spec, int context,
                        QuestionPosition position = QuestionPosition::kSeen) {
  const auto it = std::ranges::find_if(
      rows, [&](const ReportRow& r) { return r.spec == spec && r.context == context && r.position == position; });
  EXPECT_NE(it, rows.end()) << spec;
  return *it;
}

// compression.md 14: medians and range of the repeats, percentiles over all gaps, the most memory.
TEST(Timing, FiguresOfACacheAloneByHand) {
  StoredResults results = made_results(6);
  for (Outcome& o : results.outcomes) o.shared = true;
  add_solo(results);
  results.solo[1].token_gaps_json = "[20,25,120]";
  const std::vector<ReportRow> rows = report_rows(results);
  const ReportRow& full = row_of(rows, "full", 2048);
  ASSERT_TRUE(full.solo.has_value());
  const SoloFigures& s = *full.solo;
  EXPECT_EQ(s.runs, 5);
  EXPECT_EQ(s.failed, 0);
  EXPECT_EQ(s.sample, "0");
  EXPECT_EQ(s.prompt_tokens, 2000);
  EXPECT_NEAR(s.ttft_s.median, 1.2, 1e-12);
  EXPECT_NEAR(s.ttft_s.low, 1.0, 1e-12);
  EXPECT_NEAR(s.ttft_s.high, 1.4, 1e-12);
  EXPECT_NEAR(s.decode_tokens_per_s->median, 42, 1e-12);
  EXPECT_DOUBLE_EQ(s.gaps->p50, 25);
  EXPECT_DOUBLE_EQ(s.gaps->max, 120);
  // 15 gaps: 5 x 20, 5 x 25, 4 x 30, 120; the 0.95-quantile lies at place 13.3 of 0 .. 14.
  EXPECT_NEAR(s.gaps->p95, 30 + 0.3 * 90, 1e-9);
  EXPECT_EQ(s.peak_rss_bytes, std::int64_t{204} << 20);
  EXPECT_EQ(s.same_text, true);
  EXPECT_FALSE(row_of(rows, "full", 4096).solo.has_value());

  EXPECT_FALSE(shown_times(full).shared);
  EXPECT_NEAR(*shown_times(full).decode_tokens_per_s, 42, 1e-12);
  EXPECT_TRUE(shown_times(row_of(rows, "full", 4096)).shared);

  const nlohmann::json json = report_json(results, rows);
  EXPECT_EQ(json["rows"][0]["solo"]["runs"], 5);
  EXPECT_EQ(json["rows"][0]["solo"]["same_text"], true);
  EXPECT_NEAR(json["rows"][0]["ttft_s"].get<double>(), 2, 1e-12);  // the shared one stays beside it
  EXPECT_TRUE(json["rows"][3]["solo"].is_null());
}

TEST(Timing, AnotherTextFailuresAndFewRepeatsAreCaveats) {
  StoredResults results = made_results(6);
  add_solo(results);
  results.solo[4].text = "the answer is 43";                                        // full, its last run
  results.solo[5].error = "the process of its own was ended by signal 9 (Killed)";  // kivi:bits=4, its first
  const std::vector<ReportRow> rows = report_rows(results);
  EXPECT_EQ(row_of(rows, "full", 2048).solo->same_text, false);
  EXPECT_EQ(rows[1].solo->runs, 4);
  EXPECT_EQ(rows[1].solo->failed, 1);
  std::string all;
  for (const std::string& caveat : report_caveats(results, rows)) all += caveat + "\n";
  EXPECT_NE(all.find("alone it wrote another text"), std::string::npos) << all;
  EXPECT_NE(all.find("1 of 5 runs alone failed; the first: the process of its own was ended by signal 9"), std::string::npos)
      << all;
  EXPECT_NE(all.find("fewer than 5 times"), std::string::npos) << all;
  EXPECT_EQ(all.find("marked *"), std::string::npos) << all;
}

TEST(Timing, TheTableShowsTimesAloneWithoutTheMark) {
  StoredResults results = made_results(6);
  for (Outcome& o : results.outcomes) o.shared = true;
  std::string table = text_table(results, report_rows(results));
  EXPECT_NE(table.find("20.0*"), std::string::npos) << table;
  EXPECT_EQ(table.find("each cache alone"), std::string::npos);
  add_solo(results);
  table = text_table(results, report_rows(results));
  EXPECT_NE(table.find("needle at 2048 tokens: each cache alone, 5 runs on sample 0 of 2000 prompt tokens"), std::string::npos)
      << table;
  EXPECT_NE(table.find("   1.20   1.00-1.40    2.00*   42.0   40.0-44.0    4    4.0   25.0   30.0   30.0     204"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("20.0*"), std::string::npos) << table;  // at 4,096 tokens nothing ran alone
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120U) << line;
}

TEST(Timing, TheTableShowsAnswersAndActions) {
  const StoredResults results = made_results(6);
  const std::string table = text_table(results, report_rows(results));
  EXPECT_NE(table.find("needle at 4096 tokens: where caches acted"), std::string::npos) << table;
  // 4 to 9 tokens; half of the answers were cut off.
  EXPECT_NE(table.find(" 100 %        4      5      6      8       9    50 %"), std::string::npos) << table;
  EXPECT_NE(table.find("   0 %        4      5      6      8       9    50 %"), std::string::npos) << table;
}

// made_results: kivi:bits=2 is right on every second prompt when the question is seen, never when it is not.
TEST(Positions, DifferencesOfTheSameCacheByHand) {
  StoredResults results = made_results(10);
  EXPECT_TRUE(position_rows(results).empty());
  add_unseen(results);
  for (Outcome& o : results.outcomes) {
    if (o.key.position == QuestionPosition::kUnseen && o.spec == "full") o.gold_log_likelihood = -0.3;
  }
  const std::vector<PositionRow> rows = position_rows(results);
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[0].spec, "full");
  EXPECT_EQ(rows[0].n, 10);
  EXPECT_NEAR(*rows[0].likelihood_seen, -0.2, 1e-12);
  EXPECT_NEAR(*rows[0].likelihood.mean, -0.3, 1e-12);
  EXPECT_NEAR(*rows[0].likelihood.difference, -0.1, 1e-12);
  EXPECT_EQ(rows[0].likelihood.verdict, Verdict::kWorse);
  EXPECT_EQ(rows[2].spec, kTwo);
  EXPECT_NEAR(*rows[2].score_seen, 50, 1e-12);
  EXPECT_NEAR(*rows[2].score.mean, 0, 1e-12);
  EXPECT_NEAR(*rows[2].score.difference, -50, 1e-12);
  EXPECT_EQ(rows[2].score.verdict, Verdict::kWorse);

  // Each cell pairs with full in its own position.
  const std::vector<ReportRow> cells = report_rows(results);
  ASSERT_EQ(cells.size(), 12U);
  EXPECT_NEAR(*row_of(cells, kTwo, 2048).score.difference, -50, 1e-12);
  EXPECT_NEAR(*row_of(cells, kTwo, 2048, QuestionPosition::kUnseen).score.difference, -100, 1e-12);
  EXPECT_EQ(report_json(results, cells)["positions"].size(), 6U);

  const std::string table = text_table(results, cells);
  EXPECT_NE(table.find("question=seen+unseen"), std::string::npos) << table;
  EXPECT_NE(table.find("needle, context 2048, question unseen: 10 samples"), std::string::npos) << table;
  EXPECT_NE(table.find("needle at 2048 tokens: question seen or unseen when the cache is sealed"), std::string::npos) << table;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120U) << line;
}

// Below every comparison: what a cache that loses nothing differs by, of the prompts that ran.
TEST(Positions, NameTheFloorOfTheirDifferences) {
  StoredResults results = made_results(4);
  add_unseen(results);
  for (Outcome& o : results.outcomes) {
    if (o.key.position != QuestionPosition::kUnseen || o.spec != "full") continue;
    if (o.key.sample == "1") *o.gold_log_likelihood -= 0.045;
    if (o.key.sample == "2") *o.gold_log_likelihood += 0.021;
  }
  std::vector<PositionRow> rows = position_rows(results);
  EXPECT_NEAR(rows[0].largest_likelihood_difference, 0.045, 1e-12);
  EXPECT_NEAR(rows[2].largest_likelihood_difference, 0, 1e-12);
  const std::string of_full = position_floor(rows);
  EXPECT_NE(of_full.find("full, which drops nothing, itself differs by up to 0.045 nats on one of 8 prompts, and by -0.006"),
            std::string::npos)
      << of_full;
  EXPECT_NEAR(positions_json(rows)[0]["likelihood_largest_difference"].get<double>(), 0.045, 1e-12);
  EXPECT_NE(text_table(results, report_rows(results)).find("Floor: full"), std::string::npos);

  for (Outcome& o : results.outcomes) {
    if (o.spec == kTwo) o.spec = "f32";
  }
  const std::string of_f32 = position_floor(position_rows(results));
  EXPECT_NE(of_f32.find("f32, which loses nothing, itself differs by up to 0.000 nats"), std::string::npos) << of_f32;
  std::erase_if(results.outcomes, [](const Outcome& o) { return o.spec == "full" || o.spec == "f32"; });
  const std::string of_none = position_floor(position_rows(results));
  EXPECT_NE(of_none.find("Run f32 or full"), std::string::npos) << of_none;
}

// With its question seen such an answer is that of every cache, and its difference to the other position what the cache loses.
TEST(Positions, AnswersOfOneTokenAreLeftOut) {
  StoredResults results = made_results(4);
  add_unseen(results);
  for (SampleRecord& s : results.samples) s.gold_tokens = s.key.sample == "1" ? 1 : 5;
  for (const PositionRow& row : position_rows(results)) EXPECT_EQ(row.n, 3) << row.spec;
}

// The conversation takes 0.1 nats from every cache, full too: no cost of theirs.
TEST(Positions, ASecondQuestionCostsWhatItLosesToFullBeyondTheQuestionSeen) {
  StoredResults results = made_results(10);
  add_unseen(results);
  add_second(results);
  const std::vector<PositionRow> rows = position_rows(results);
  ASSERT_EQ(rows.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(rows[i].position, i < 6 ? QuestionPosition::kUnseen : QuestionPosition::kSecond);
  const PositionRow& full = rows[6];
  EXPECT_EQ(full.spec, "full");
  EXPECT_NEAR(*full.likelihood_seen, -0.2, 1e-12);
  EXPECT_NEAR(*full.likelihood.mean, -0.3, 1e-12);
  EXPECT_FALSE(full.likelihood.difference.has_value());
  EXPECT_EQ(full.likelihood.verdict, Verdict::kNone);
  EXPECT_NEAR(*rows[7].likelihood.difference, 0, 1e-12);
  EXPECT_EQ(rows[7].likelihood.verdict, Verdict::kSame);
  EXPECT_EQ(rows[8].spec, kTwo);
  EXPECT_NEAR(*rows[8].likelihood.difference, -0.3, 1e-12);
  EXPECT_EQ(rows[8].likelihood.verdict, Verdict::kWorse);
  EXPECT_NEAR(*rows[8].score.difference, 0, 1e-12);

  const auto costs = next_question_costs(results);
  ASSERT_EQ(costs.size(), 2U);
  EXPECT_NEAR(*costs.at({WorkKind::kQuestions, kTwo}).difference, -0.3, 1e-12);

  const std::vector<ReportRow> cells = report_rows(results);
  EXPECT_NEAR(*row_of(cells, kTwo, 2048, QuestionPosition::kSecond).likelihood.difference, -0.7, 1e-3);
  const nlohmann::json json = report_json(results, cells)["positions"];
  EXPECT_EQ(json[0]["question_position"], "unseen");
  EXPECT_EQ(json[8]["question_position"], "second");
  EXPECT_NEAR(json[8]["likelihood_second"].get<double>(), -1, 1e-3);
  EXPECT_FALSE(json[8].contains("likelihood_unseen"));
  const std::string table = text_table(results, cells);
  EXPECT_NE(table.find("question=seen+unseen+second"), std::string::npos) << table;
  EXPECT_NE(table.find("needle, context 2048, second question: 10 samples"), std::string::npos) << table;
  EXPECT_NE(table.find("needle at 4096 tokens: what choosing rows for one question cost the next one"), std::string::npos)
      << table;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120U) << line;
}

TEST(Positions, SecondQuestionsAboutAnotherDocumentAreNoPairs) {
  StoredResults results = made_results(6);
  add_second(results);
  for (SampleRecord& s : results.samples)
    s.document = s.key.sample == "1" && s.key.position == QuestionPosition::kSecond ? "another" : "d" + s.key.sample;
  const std::vector<PositionRow> rows = position_rows(results);
  EXPECT_EQ(rows[0].n, 5);
  // Without full nothing tells what the conversation changed.
  std::erase_if(results.outcomes, [](const Outcome& o) { return o.spec == "full"; });
  EXPECT_FALSE(position_rows(results)[0].likelihood.difference.has_value());
  EXPECT_TRUE(position_rows(results)[0].likelihood.mean.has_value());
}

TEST(Positions, OnlyPromptsThatAreTheSameCount) {
  StoredResults results = made_results(4);
  add_unseen(results);
  for (SampleRecord& s : results.samples) {
    if (s.key.position == QuestionPosition::kUnseen && s.key.sample == "1") s.prompt_hash = "another";
  }
  results.outcomes.back().error = "out of memory";  // kivi:bits=2 on the last prompt at 4,096 tokens, unseen
  const std::vector<PositionRow> rows = position_rows(results);
  EXPECT_EQ(rows[0].n, 3);
  EXPECT_EQ(rows[5].n, 2);
}

}  // namespace
}  // namespace kvartet
