#include "report/claims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "report/claims_fixture.h"
#include "report/evidence.h"
#include "report/page_fixture.h"
#include "report/published_figures.h"

namespace kvartet {
namespace {

TEST(Claims, KiviFourMostStable) {
  Made m = compression();
  for (const char* spec : {kKivi2, kTurbo3, kTurbo4, kSnap, kCam}) m.change(spec, "", likelier(-0.3));
  m.change(kKivi4, "", likelier(-0.01));
  expect_result(m, "most stable", kYes);
  m.change(kSnap, "", likelier(0.3));  // SnapKV is now like full
  expect_result(m, "most stable", kNo);
  Made few = compression(1);
  expect_result(few, "most stable", kOpen);
  EXPECT_EQ(row_of(few.results, "most stable").n, 3);
}

TEST(Claims, AChangeForTheBetterIsAChange) {
  Made m = compression();
  for (const char* spec : {kKivi2, kTurbo3, kTurbo4, kSnap, kCam}) m.change(spec, "", likelier(-0.1));
  m.change(kKivi4, "", likelier(0.3));
  expect_result(m, "most stable", kNo);
}

TEST(Claims, SnapKvAboveFullOnQuestions) {
  Made m = compression();
  m.change(kSnap, "docqa", scored(30));
  expect_result(m, "SnapKV scores above", kYes);
  EXPECT_GT(*row_of(m.results, "SnapKV scores above").low, 0);
  m.change(kSnap, "docqa", scored(-60));
  expect_result(m, "SnapKV scores above", kNo);
  Made few = compression(12);  // no difference, but 12 pairs cannot show that
  expect_result(few, "SnapKV scores above", kOpen);
  expect_result(compression(60), "SnapKV scores above", kNo);  // 60 can: the same within 5 points
}

TEST(Claims, CamCountsOnlyWhereItActed) {
  Made m = compression();
  m.change(kCam, "docqa", scored(30));
  expect_result(m, "CaM scores above", kYes);
  m.change(kCam, "docqa", [](Outcome& o) { o.acted = false; });
  expect_result(m, "CaM scores above", kNever);
  EXPECT_NE(row_of(m.results, "CaM scores above").reason.find("acted on none of 60"), std::string::npos);
  Made worse = compression();
  worse.change(kCam, "docqa", scored(-30));
  expect_result(worse, "CaM scores above", kNo);
}

TEST(Claims, SummariesSufferMost) {
  Made m = compression();
  for (const std::string& spec : kCompression) {
    if (spec != "full")
      m.change(spec, "longbench/multi_news", [](Outcome& o) { *o.score *= o.completion_tokens % 3 == 0 ? 0.5 : 0.6; });
  }
  expect_result(m, "Summaries", kYes);
  Made other = compression();
  for (const std::string& spec : kCompression) {
    if (spec != "full") other.change(spec, "docqa", [](Outcome& o) { *o.score *= o.completion_tokens % 3 == 0 ? 0.5 : 0.6; });
  }
  expect_result(other, "Summaries", kNo);
  Made unable = compression();
  unable.change("full", "longbench/multi_news", [](Outcome& o) { o.score = 0.01; });
  expect_result(unable, "Summaries", kOpen);
  EXPECT_NE(row_of(unable.results, "Summaries").reason.find("below 5"), std::string::npos);
}

TEST(Claims, FewShot) {
  Made m = compression();
  expect_result(m, "Few-shot tasks are robust", kYes);
  m.change(kTurbo3, "fewshot", scored(-40));
  expect_result(m, "Few-shot tasks are robust", kNo);
  expect_result(compression(10), "Few-shot tasks are robust", kOpen);

  Made best = compression();
  best.change(kKivi2, "fewshot", scored(30));
  expect_result(best, "KIVI-2 is the best", kYes);
  best.change(kSnap, "fewshot", scored(60));
  expect_result(best, "KIVI-2 is the best", kNo);
  expect_result(compression(10), "KIVI-2 is the best", kOpen);
}

TEST(Claims, PredictableRatios) {
  Made m = compression();
  m.change(kKivi2, "", ratio(5.2));
  m.change(kKivi4, "", ratio(3.1));
  m.change(kSnap, "", ratio(4));
  expect_result(m, "predictably", kYes);
  m.change(kKivi4, "fewshot", ratio(2.5));
  expect_result(m, "predictably", kNo);
  EXPECT_NE(row_of(m.results, "predictably").reason.find("KIVI-4 2.50"), std::string::npos)
      << row_of(m.results, "predictably").reason;
  expect_result(compression(1), "predictably", kOpen);
}

TEST(Claims, CamFollowsLength) {
  // 3,000 tokens and a target of 1,024: length alone gives about 2.9.
  const auto with_ratio = [](double times) {
    Made m;
    m.results.runs = {made_run()};
    m.task("docqa", "contains");
    m.samples("docqa", 10, kCompression, 3000);
    m.change(kCam, "", [=](Outcome& o) {
      o.end_allocated_bytes = 1000000;
      o.end_f16_bytes = static_cast<std::int64_t>(times * 1e6);
    });
    return m;
  };
  expect_result(with_ratio(2.9), "redundancy", kNo);
  expect_result(with_ratio(9), "redundancy", kNo);  // one factor for all: of layers with a window, say
  Made various = with_ratio(2.9);
  various.change(kCam, "", [](Outcome& o) { o.end_f16_bytes *= o.completion_tokens % 2 == 0 ? 1 : 3; });
  expect_result(various, "redundancy", kYes);
  Made idle = with_ratio(1);
  idle.change(kCam, "", [](Outcome& o) { o.acted = false; });
  expect_result(idle, "redundancy", kNever);
}

TEST(Claims, RatioPredictsNeitherQualityNorSpeed) {
  Made m = compression();
  const std::vector<std::pair<const char*, double>> order = {{kKivi2, 5.2},  {kKivi4, 3.1}, {kTurbo3, 4.9},
                                                             {kTurbo4, 3.8}, {kSnap, 4.3},  {kCam, 2}};
  for (const auto& [spec, times_smaller] : order) {
    m.change(spec, "", ratio(times_smaller));
    m.change(spec, "", likelier(-0.2 * times_smaller));
    m.change(spec, "", times(times_smaller, 1));
  }
  expect_result(m, "not predict quality", kNo);
  expect_result(m, "not predict speed", kNo);
  m.change(kKivi2, "", likelier(1));
  expect_result(m, "not predict quality", kYes);
  m.change(kKivi2, "", times(0.1, 1));
  expect_result(m, "not predict speed", kYes);
  m.change(kKivi2, "", [](Outcome& o) { o.shared = true; });
  expect_result(m, "not predict speed", kNever);
  Made even = compression();
  for (const auto& [spec, times_smaller] : order) even.change(spec, "", ratio(times_smaller));
  even.change(kKivi2, "", scattered(0.3));
  even.change(kTurbo3, "", scattered(-0.3));
  for (const char* spec : {kKivi4, kTurbo4, kSnap, kCam}) even.change(spec, "", scattered(0.1));
  expect_result(even, "not predict quality", kOpen);
}

TEST(Claims, ModelFamilies) {
  Made m = compression();
  double loss = 0;
  for (const char* spec : {kKivi4, kTurbo4, kTurbo3, kKivi2, kSnap, kCam}) m.change(spec, "", likelier(loss -= 0.2));
  expect_result(m, "model families", kNever);
  expect_result(m, "model families", kYes, &m.results);
  Made other = m;
  other.change(kCam, "", likelier(5));
  expect_result(m, "model families", kNo, &other.results);
  Made shared = other;  // the same work, several questions about a document
  shared.rename("docqa", "docqa:questions=4");
  expect_result(m, "model families", kNo, &shared.results);
  Made elsewhere = m;  // no common task
  for (StoredTask& t : elsewhere.results.tasks) t.task += "-other";
  expect_result(m, "model families", kOpen, &elsewhere.results);
}

// Each is "worse loses to better" on context-intensive tasks.
TEST(Claims, OffloadingLosses) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"Keys of low rank", oracle("svd,rank=30"), oracle("f16")},
      {"8-token chunks", landmarks("bf16", 8), oracle("f16")},
      {"equal bytes", oracle("svd,rank=30"), oracle("higgs2")},
      {"ShadowKV loses against YAKV", kShadow, kYakv},
      {"1-bit residuals", landmarks("higgs1"), landmarks("residual")}};
  for (const auto& [claim, worse, better] : cases) {
    Made m = offloading();
    m.change(worse, "multineedle:k=4", likelier(-0.4));
    expect_result(m, claim, kYes);
    EXPECT_NE(row_of(m.results, claim).reason.find("multineedle:k=4"), std::string::npos) << claim;
    expect_result(offloading(), claim, kNo);  // the same
    Made open = offloading(6);
    open.change(worse, "multineedle:k=4", scattered(0.4));
    expect_result(open, claim, kOpen);
    Made needle_only = offloading();
    needle_only.change(worse, "needle", likelier(-0.4));
    expect_result(needle_only, claim, kNo);
  }
}

// Tasks that decide together may each have too few documents, which is no sign that a task by itself loses nothing.
TEST(Claims, ATaskOfFewDocumentsIsNotSaidToLoseNothing) {
  Made m = offloading(4);
  m.task("codebase", "keywords");
  m.samples("codebase", 4, kOffloading);
  for (const char* task : {"codebase", "multineedle:k=4"}) m.change(kShadow, task, likelier(-0.4));
  expect_result(m, "ShadowKV loses against YAKV", kYes);
  const std::string reason = row_of(m.results, "ShadowKV loses against YAKV").reason;
  EXPECT_NE(reason.find("No task by itself has the 5 documents"), std::string::npos) << reason;
  EXPECT_NE(row_of(offloading().results, "ShadowKV loses against YAKV").reason.find("No task by itself shows a loss"),
            std::string::npos);
}

TEST(Claims, EqualBytesMeansEqualBytes) {
  Made m = offloading();
  m.change(oracle("svd,rank=30"), "multineedle:k=4", likelier(-0.4));
  m.change(oracle("higgs2"), "", [](Outcome& o) { o.allocated_bytes *= 2; });
  expect_result(m, "equal bytes", kNever);
}

TEST(Claims, NearFull) {
  for (const auto& [claim, spec] :
       {std::pair<std::string, std::string>{"at 2 bits come near", landmarks("higgs2")}, {"close to lossless", kYakv}}) {
    Made m = offloading();
    m.change(spec, "", likelier(-0.01));
    expect_result(m, claim, kYes);
    m.change(spec, "", likelier(-0.5));
    expect_result(m, claim, kNo);
    Made open = offloading(6);
    open.change(spec, "", scattered(0.4));
    expect_result(open, claim, kOpen);
  }
}

TEST(Claims, SingleNeedlesHideIt) {
  Made m = offloading();
  m.change(kShadow, "multineedle:k=4", likelier(-0.4));
  expect_result(m, "single needle", kYes);
  Made shown = m;
  shown.change(kShadow, "needle", scored(-40));
  expect_result(shown, "single needle", kNo);
  expect_result(offloading(), "single needle", kNo);  // nothing is lost, so nothing is hidden
  Made few = offloading(10);                          // so few needles cannot show that none is lost
  few.change(kShadow, "multineedle:k=4", likelier(-0.4));
  expect_result(few, "single needle", kOpen);
}

TEST(Claims, WithoutTheCachesNothingIsClaimed) {
  EXPECT_TRUE(find_claims({}).empty());
  EXPECT_TRUE(find_claims(made_results(10)).empty());  // KIVI alone is no study
  Made m = compression();
  std::erase_if(m.results.outcomes, [](const Outcome& o) { return o.spec == "full"; });
  EXPECT_TRUE(find_claims(m.results).empty());
  Made no_snap = compression();
  std::erase_if(no_snap.results.outcomes, [](const Outcome& o) { return o.spec == kSnap; });
  expect_result(no_snap, "SnapKV scores above", kNever);
  EXPECT_NE(row_of(no_snap.results, "SnapKV scores above").reason.find("no SnapKV"), std::string::npos);
  EXPECT_EQ(row_of(no_snap.results, "SnapKV scores above").to_run,
            "kvartet bench -m tiny --preset compression-paper --kv full --kv snapkv:budget=0.25 -o DIR");
  Made no_few_shot = compression();
  std::erase_if(no_few_shot.results.outcomes, [](const Outcome& o) { return o.key.task == "fewshot"; });
  expect_result(no_few_shot, "Few-shot tasks are robust", kNever);
  EXPECT_NE(row_of(no_few_shot.results, "Few-shot tasks are robust").to_run.find("--task fewshot"), std::string::npos);
}

// One command may serve several claims; it stands below the table once, where it has room.
TEST(Claims, WhatWasNotRunStandsWithItsCommand) {
  Made m = compression();
  for (Outcome& o : m.results.outcomes) o.shared = true;
  const std::string page = page_of(m.results, {.claims = find_claims(m.results)});
  const std::string command = row_of(m.results, "generates slowest").to_run;
  EXPECT_EQ(command, row_of(m.results, "not predict speed").to_run);
  const std::string shown = "<code>" + command + "</code>";
  EXPECT_NE(page.find(shown), std::string::npos);
  EXPECT_EQ(page.find(shown), page.rfind(shown));
  EXPECT_GT(page.find(shown), page.find("What was not run here"));
  EXPECT_NE(page.find("<td>1.000</td>"), std::string::npos);  // a factor has no sign
  EXPECT_EQ(page.find("+1.000"), std::string::npos);
}

TEST(Claims, FailedAnswersAreNoEvidence) {
  Made m = compression();
  m.change(kSnap, "docqa", scored(30));
  m.change(kSnap, "docqa", [](Outcome& o) { o.error = "out of memory"; });
  expect_result(m, "SnapKV scores above", kNever);
  EXPECT_EQ(row_of(m.results, "SnapKV scores above").n, 0);
}

TEST(Claims, EveryClaimIsInTextJsonAndPage) {
  const Made m = compression();
  const std::vector<StudyClaims> studies = find_claims(m.results);
  ASSERT_EQ(studies.size(), 1U);
  EXPECT_EQ(studies[0].rows.size(), 15U);
  EXPECT_EQ(find_claims(offloading().results).at(0).rows.size(), 9U);
  const std::string text = claims_text(studies);
  const nlohmann::json json = claims_json(studies);
  const std::string page = page_of(m.results, {.claims = studies});
  ASSERT_EQ(json.size(), 15U);
  std::set<std::string> claims;
  for (const ClaimRow& row : studies[0].rows) {
    EXPECT_NE(text.find(row.claim), std::string::npos);
    EXPECT_NE(page.find(row.claim), std::string::npos);
    claims.insert(row.claim);
  }
  EXPECT_EQ(claims.size(), 15U);
  EXPECT_NE(page.find("href=\"#claims\""), std::string::npos);
  EXPECT_EQ(page_of(m.results).find("id=\"claims\""), std::string::npos);
}

// compression.md 15.1: the paper's figures stand beside ours where the same model ran, and nowhere else.
TEST(Claims, PublishedFiguresBesideTheSameModel) {
  EXPECT_EQ(published_model("models/meta_llama-3.1-8B-instruct.Q8_0.gguf"), "Llama-3.1-8B-Instruct");
  EXPECT_EQ(published_model("smollm2"), "");
  EXPECT_EQ(published_score("Llama-3.1-8B-Instruct", "KIVI-4", "longbench/2wikimqa"), 46.63);
  EXPECT_EQ(published_score("Mistral-7B-Instruct-v0.3", "CaM", "longbench/multi_news"), 16.73);
  EXPECT_FALSE(published_score("Llama-3.1-8B-Instruct", "KIVI-4", "docqa"));
  EXPECT_FALSE(published_score("", "KIVI-4", "longbench/2wikimqa"));
  Made m = compression();
  const auto page = [&] { return page_of(m.results, {.claims = find_claims(m.results)}); };
  EXPECT_EQ(page().find("(23.40)"), std::string::npos);
  m.results.runs.front().identity.model_name = "Llama-3.1-8B-Instruct";
  EXPECT_NE(page().find("(23.40)"), std::string::npos);
}

TEST(Claims, KeysOfASpec) {
  const auto keys = spec_keys("select:budget=0.03125,chunk=8,index=bf16");
  ASSERT_TRUE(keys);
  EXPECT_EQ(keys->name, "select");
  EXPECT_EQ(keys->key("chunk"), "8");
  EXPECT_EQ(keys->key("rank"), "");
  EXPECT_EQ(spec_keys("full")->keys.size(), 0U);
  EXPECT_FALSE(spec_keys("snapkv:budget=0.25+kivi:bits=4"));
}

TEST(Claims, JudgesReadIntervals) {
  const auto interval = [](double low, double high, int n = 10) {
    return PairedInterval{n, n, (low + high) / 2, low, high, true};
  };
  EXPECT_EQ(judge_above(interval(0.1, 0.2), 0.05), kYes);
  EXPECT_EQ(judge_above(interval(-0.2, -0.1), 0.05), kNo);
  EXPECT_EQ(judge_above(interval(-0.04, 0.04), 0.05), kNo);
  EXPECT_EQ(judge_above(interval(-0.1, 0.1), 0.05), kOpen);
  EXPECT_EQ(judge_above(interval(0.1, 0.2, 4), 0.05), kOpen);
  EXPECT_EQ(judge_no_less(interval(-0.04, 0.3), 0.05), kYes);
  EXPECT_EQ(judge_no_less(interval(-0.3, -0.01), 0.05), kNo);
  EXPECT_EQ(judge_no_less(interval(-0.3, 0.1), 0.05), kOpen);
  EXPECT_EQ(judge_equal(interval(-0.04, 0.04), 0.05), kYes);
  EXPECT_EQ(judge_equal(interval(0.01, 0.1), 0.05), kNo);
  EXPECT_EQ(judge_equal(interval(-0.01, 0.1), 0.05), kOpen);
  EXPECT_EQ(judge_equal(PairedInterval{}, 0.05), kOpen);
}

}  // namespace
}  // namespace kvartet
