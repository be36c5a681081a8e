#include "report/rows.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "report/text_table.h"

namespace kvartet {
namespace {

Outcome outcome(int i, const std::string& spec, double score, double likelihood) {
  Outcome o;
  o.key = {"needle", 2048, std::to_string(i)};
  o.spec = spec;
  o.score = score;
  o.gold_log_likelihood = likelihood;
  o.ttft_s = 1 + i;
  o.shared = true;
  o.decode_tokens_per_s = 10 + i;
  o.f16_bytes = 400;
  o.allocated_bytes = spec == "full" ? 400 : 100;
  o.fast_bytes = spec == "full" ? 400 : 50;
  o.end_f16_bytes = 500;
  o.end_allocated_bytes = 250;
  o.end_fast_bytes = 250;
  o.acted = spec != "full";
  o.completion_tokens = 4;
  return o;
}

StoredResults results_of(int n) {
  StoredResults r;
  RunRecord run;
  run.identity = {.model_hash = "h", .model_name = "tiny", .model_shape = "s", .seed = 1, .parameters = "", .version = "0.1.0"};
  run.machine.cpu = "A processor with a name";
  run.threads = 2;
  r.runs = {run};
  r.tasks = {{"needle", "contains"}};
  for (int i = 0; i < n; ++i) {
    SampleRecord s;
    s.key = {"needle", 2048, std::to_string(i)};
    s.ordinal = i;
    s.prompt_tokens = 2000;
    r.samples.push_back(s);
  }
  for (int i = 0; i < n; ++i) {
    r.outcomes.push_back(outcome(i, "full", 1, -0.20));
    r.outcomes.push_back(outcome(i, "snapkv:budget=0.25,window=32,kernel=7,pool=max", i < 3 ? 1 : 0, i % 2 == 0 ? -0.6 : -0.8));
  }
  return r;
}

TEST(ReportRows, MeansIntervalsAndRatiosByHand) {
  const StoredResults results = results_of(10);
  const std::vector<ReportRow> rows = report_rows(results);
  ASSERT_EQ(rows.size(), 2U);
  const ReportRow& full = rows[0];
  EXPECT_EQ(full.spec, "full");
  EXPECT_EQ(full.n, 10);
  EXPECT_DOUBLE_EQ(*full.score.mean, 100);
  EXPECT_FALSE(full.score.low.has_value());
  EXPECT_DOUBLE_EQ(full.compression_ratio, 1);
  EXPECT_DOUBLE_EQ(full.ttft_s, 5.5);  // median of 1..10
  EXPECT_DOUBLE_EQ(*full.decode_tokens_per_s, 14.5);

  const ReportRow& snap = rows[1];
  EXPECT_EQ(snap.paired, 10);
  EXPECT_EQ(snap.documents, 10);
  EXPECT_NEAR(*snap.score.mean, 30, 1e-9);
  EXPECT_NEAR(*snap.score.difference, -70, 1e-9);
  // center -7/12, variance 8/12 - (7/12)^2 = 0.326389, half 1.959964 * sqrt(0.326389/12) = 0.323238
  EXPECT_NEAR(*snap.score.low, 100 * (-7.0 / 12 - 0.323238), 1e-3);
  EXPECT_NEAR(*snap.score.high, 100 * (-7.0 / 12 + 0.323238), 1e-3);
  EXPECT_EQ(snap.score.verdict, Verdict::kWorse);
  // differences -0.4 and -0.6 in turn: mean -0.5, s = 0.105409, half 2.262157 * 0.0333333
  EXPECT_NEAR(*snap.likelihood.difference, -0.5, 1e-9);
  EXPECT_NEAR(*snap.likelihood.high, -0.5 + 2.262157 * 0.0333333, 1e-5);
  EXPECT_EQ(snap.likelihood.verdict, Verdict::kWorse);
  EXPECT_DOUBLE_EQ(snap.compression_ratio, 4);
  EXPECT_DOUBLE_EQ(snap.fast_ratio, 8);
  EXPECT_DOUBLE_EQ(snap.end_compression_ratio, 2);
  EXPECT_DOUBLE_EQ(snap.acted, 1);
}

// docs/decisions/0012: questions about one document are no independent samples. Four documents of two questions, two of one;
// their pseudo-values are -0.5 +- 0.125 (four) and +- 0.0555556 (two): the variance of the mean is 0.0686728 / 5 / 6.
TEST(ReportRows, IntervalsRestOnDocuments) {
  StoredResults results = results_of(10);
  const std::string documents = "ABABCDCDEF";
  for (std::size_t i = 0; i < 10; ++i) results.samples[i].document = documents[i];
  const std::vector<ReportRow> rows = report_rows(results);
  const ReportRow& snap = rows[1];
  EXPECT_EQ(snap.n, 10);
  EXPECT_EQ(snap.documents, 6);
  EXPECT_NEAR(*snap.likelihood.difference, -0.5, 1e-9);
  EXPECT_NEAR(*snap.likelihood.high, -0.5 + 2.570582 * 0.0478445, 1e-5);
  EXPECT_NEAR(*snap.likelihood.low, -0.5 - 2.570582 * 0.0478445, 1e-5);
  EXPECT_EQ(report_json(results, rows)["rows"][1]["documents"], 6);
  EXPECT_NE(text_table(results, rows).find("needle at 2048 tokens (10 prompts about 6 documents)"), std::string::npos);
  for (std::size_t i = 0; i < 10; ++i) results.samples[i].document = "XYZ"[i / 4];  // three: too few
  EXPECT_EQ(report_rows(results)[1].likelihood.verdict, Verdict::kNotMeasurable);
}

TEST(ReportRows, FailuresAreCountedAndPairsAreTheIntersection) {
  StoredResults results = results_of(10);
  results.outcomes[0].error = "out of memory";  // full, sample 0
  results.outcomes[3].error = "out of memory";  // snapkv, sample 1
  const std::vector<ReportRow> rows = report_rows(results);
  EXPECT_EQ(rows[0].n, 9);
  EXPECT_EQ(rows[0].failed, 1);
  EXPECT_EQ(rows[1].n, 9);
  EXPECT_EQ(rows[1].failed, 1);
  EXPECT_EQ(rows[1].paired, 8);
  EXPECT_EQ(rows[1].first_error, "out of memory");
  const std::string table = text_table(results, rows);
  EXPECT_NE(table.find("1 of 10 failed"), std::string::npos);
  EXPECT_NE(table.find("out of memory"), std::string::npos);
}

TEST(ReportRows, WithoutFullThereIsNoVerdict) {
  StoredResults results = results_of(6);
  std::erase_if(results.outcomes, [](const Outcome& o) { return o.spec == "full"; });
  const std::vector<ReportRow> rows = report_rows(results);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].score.verdict, Verdict::kNone);
  EXPECT_FALSE(rows[0].score.low.has_value());
  const nlohmann::json json = report_json(results, rows);
  EXPECT_TRUE(json["rows"][0]["low"].is_null());
  EXPECT_EQ(json["rows"][0]["spec"], "snapkv:budget=0.25,window=32,kernel=7,pool=max");
}

TEST(TextTable, FitsTheTerminalAndNamesEveryCache) {
  StoredResults results = results_of(10);
  results.outcomes.push_back(outcome(0, "kivi:bits=2,group=32,residual=128,center=none", 0.5, -12.345));
  const std::vector<ReportRow> rows = report_rows(results);
  const std::string table = text_table(results, rows);
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120U) << line;
  EXPECT_NE(table.find("needle, context 2048: 10 samples, 2000 prompt tokens on average, score: contains"), std::string::npos)
      << table;
  EXPECT_NE(table.find("worse"), std::string::npos);
  EXPECT_NE(table.find("n too small"), std::string::npos);  // one pair of kivi
  EXPECT_NE(table.find("snapkv:budget=0.25,window=32,"), std::string::npos);
  EXPECT_NE(table.find("kernel=7,pool=max"), std::string::npos);
}

// A results folder may come from anybody: its names must not steer the terminal.
TEST(TextTable, ShowsControlCharactersAsQuestionMarks) {
  StoredResults results = results_of(3);
  const std::string evil =
      "a\x1b[31m\r\x07\x7f\xc2\x9b"
      "2J\tb";
  results.runs.emplace_back();
  results.runs.back().identity.model_name = evil;
  results.runs.back().machine.cpu = evil;
  for (Outcome& o : results.outcomes) o.error = evil;
  const std::string table = text_table(results, report_rows(results));
  EXPECT_NE(table.find("a?[31m????2J?b"), std::string::npos) << table;
  for (const char control : {'\x1b', '\r', '\x07', '\x7f', '\t'}) EXPECT_EQ(table.find(control), std::string::npos);
  EXPECT_EQ(table.find("\xc2\x9b"), std::string::npos);
}

TEST(TextTable, SaysWhenThereIsNothing) { EXPECT_EQ(text_table({}, {}), "No sample has been finished yet.\n"); }

}  // namespace
}  // namespace kvartet
