#include "report/claims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "report/evidence.h"
#include "report/page.h"
#include "report/published_figures.h"
#include "report/report_fixture.h"

namespace kvartet {
namespace {

constexpr const char* kKivi2 = "kivi:bits=2,group=32,residual=32";
constexpr const char* kKivi4 = "kivi:bits=4,group=32,residual=32";
constexpr const char* kTurbo3 = "turboquant:bits=3,variant=mse,rotation=hadamard,residual=0,seed=1";
constexpr const char* kTurbo4 = "turboquant:bits=4,variant=mse,rotation=hadamard,residual=0,seed=1";
constexpr const char* kSnap = "snapkv:budget=0.25,window=32,kernel=7,pool=max";
constexpr const char* kCam = "cam:target=1024,interval=32,merge=32,base=streamingllm,seed=1";
const std::vector<std::string> kCompression = {"full", kKivi2, kKivi4, kTurbo3, kTurbo4, kSnap, kCam};

std::string oracle(const std::string& keys) { return "oracle:budget=0.03125,chunk=1,index=f16,keys=" + keys; }
std::string landmarks(const std::string& index, int chunk = 1) {
  return "select:budget=0.03125,chunk=" + std::to_string(chunk) + ",index=" + index + ",keys=f16";
}
const std::string kShadow = "shadowkv:budget=0.015625,chunk=8,index=bf16,keys=svd,rank=30";
const std::string kYakv = "yakv:budget=0.03125,chunk=1,index=higgs2,keys=higgs4";

// What a synthetic store says of one (spec, task): applied to outcomes whose figures are otherwise those of `full`.
using Change = std::function<void(Outcome&)>;

struct Made {
  StoredResults results;
  void task(const std::string& name, const std::string& metric) { results.tasks.push_back({name, metric}); }
  // `n` samples through `specs`, every one like full: score 0.5 or 1 in turn, -1 nats.
  void samples(const std::string& name, int n, const std::vector<std::string>& specs, int tokens = 2000) {
    for (int i = 0; i < n; ++i) {
      SampleRecord s = made_sample(name, 4096, i);
      s.prompt_tokens = tokens;
      results.samples.push_back(s);
      for (const std::string& spec : specs) {
        Outcome o = made_outcome(name, 4096, i, spec, i % 2 == 0 ? 0.5 : 1.0, -1 + 0.01 * (i % 3));
        o.ttft_s = 2 + 0.001 * (i % 3);
        o.decode_tokens_per_s = 20;
        o.acted = spec != "full";
        results.outcomes.push_back(o);
      }
    }
  }
  void rename(const std::string& task, const std::string& name) {
    for (StoredTask& t : results.tasks) t.task = t.task == task ? name : t.task;
    for (SampleRecord& s : results.samples) s.key.task = s.key.task == task ? name : s.key.task;
    for (Outcome& o : results.outcomes) o.key.task = o.key.task == task ? name : o.key.task;
  }
  void change(const std::string& spec, const std::string& task, const Change& how) {
    for (Outcome& o : results.outcomes) {
      if (o.spec == spec && (task.empty() || o.key.task == task)) how(o);
    }
  }
};

// A shift with a little spread, so that intervals have a width.
Change likelier(double nats) {
  return [=](Outcome& o) { *o.gold_log_likelihood += nats + (o.completion_tokens % 2 == 0 ? 0.002 : -0.002); };
}
Change scored(double points) {
  return [=](Outcome& o) { *o.score += points / 100; };
}
// Some samples up, as many down: nothing that few samples could decide.
Change scattered(double nats) {
  return [=](Outcome& o) { *o.gold_log_likelihood += o.completion_tokens % 2 == 0 ? nats : -nats; };
}
Change ratio(double times) {
  return [=](Outcome& o) {
    o.allocated_bytes = static_cast<std::int64_t>(1e6);
    o.f16_bytes = static_cast<std::int64_t>(times * 1e6);
  };
}

Made compression(int n = 60) {
  Made m;
  m.results.runs = {made_run()};
  m.task("docqa", "contains");
  m.task("longbench/multi_news", "rouge");
  m.task("fewshot", "classification");
  for (const char* task : {"docqa", "longbench/multi_news", "fewshot"}) m.samples(task, n, kCompression);
  return m;
}

const std::vector<std::string> kOffloading = {"full",
                                              oracle("f16"),
                                              oracle("svd,rank=30"),
                                              oracle("higgs2"),
                                              landmarks("bf16", 8),
                                              landmarks("higgs2"),
                                              landmarks("higgs1"),
                                              landmarks("residual"),
                                              kShadow,
                                              kYakv};

Made offloading(int n = 60) {
  Made m;
  m.results.runs = {made_run()};
  m.task("needle", "contains");
  m.task("multineedle:k=4", "keywords");
  for (const char* task : {"needle", "multineedle:k=4"}) m.samples(task, n, kOffloading);
  return m;
}

ClaimRow row_of(const StoredResults& results, const std::string& part, const StoredResults* other = nullptr) {
  for (const StudyClaims& study : find_claims(results, other)) {
    for (const ClaimRow& row : study.rows) {
      if (row.claim.find(part) != std::string::npos) return row;
    }
  }
  ADD_FAILURE() << "no claim about " << part;
  return {};
}

// gtest prints the reason when the result is another.
void expect_result(const Made& m, const std::string& part, ClaimResult expected, const StoredResults* other = nullptr) {
  const ClaimRow row = row_of(m.results, part, other);
  EXPECT_EQ(row.result, expected) << part << ": " << claim_result_name(row.result) << " because " << row.reason << " ["
                                  << row.figure << "]";
  EXPECT_FALSE(row.reason.empty()) << part;
  EXPECT_FALSE(row.rule.empty()) << part;
  // What never ran can be run, and is not mixed with what an interval leaves open.
  EXPECT_EQ(row.to_run.find("kvartet ") != std::string::npos, row.result == ClaimResult::kNotRun) << part << ": " << row.to_run;
}

constexpr ClaimResult kYes = ClaimResult::kReproduced;
constexpr ClaimResult kNo = ClaimResult::kNotReproduced;
constexpr ClaimResult kOpen = ClaimResult::kUndecided;
constexpr ClaimResult kNever = ClaimResult::kNotRun;

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

Change times(double factor_rate, double factor_ttft) {
  return [=](Outcome& o) {
    o.decode_tokens_per_s *= factor_rate;
    o.ttft_s *= factor_ttft;
  };
}

TEST(Claims, SnapKvRate) {
  Made m = compression();
  m.change(kSnap, "", times(1.5, 1));
  expect_result(m, "SnapKV generates", kYes);
  m.change(kSnap, "", times(0.4, 1));
  expect_result(m, "SnapKV generates", kNo);
  m.change(kSnap, "docqa", [](Outcome& o) { o.shared = true; });
  expect_result(m, "SnapKV generates", kNever);
  EXPECT_NE(row_of(m.results, "SnapKV generates").to_run.find(std::string(kSnap) + " --solo 5"), std::string::npos);
  EXPECT_NE(row_of(m.results, "SnapKV generates").reason.find("shared"), std::string::npos);
}

TEST(Claims, FirstToken) {
  Made m = compression();
  m.change(kTurbo4, "", times(1, 1.3));
  m.change(kTurbo3, "", times(1, 1.3));
  expect_result(m, "first token hardly changes", kYes);
  expect_result(m, "slowest to the first token", kYes);
  m.change(kTurbo4, "", times(1, 1 / 1.3));
  expect_result(m, "first token hardly changes", kNo);  // TurboQuant hardly changes it either
  expect_result(m, "slowest to the first token", kNo);  // as long as the others
  for (Outcome& o : m.results.outcomes) o.shared = true;
  for (const char* claim : {"first token hardly changes", "slowest to the first token"}) {
    EXPECT_NE(row_of(m.results, claim).reason.find("rests on the sealing alone"), std::string::npos);
    EXPECT_EQ(row_of(m.results, claim).limits, "by the sealing alone");
  }
  EXPECT_NE(report_page(m.results, report_rows(m.results), {.folders = {}, .notes = {}, .claims = find_claims(m.results)})
                .find("<span class=\"small\">by the sealing alone</span>"),
            std::string::npos);
  m.change(kTurbo4, "", [](Outcome& o) { o.run = 2; });  // in other company than full: nothing to hold against it
  EXPECT_EQ(row_of(m.results, "slowest to the first token").n, 0);
  Made few = compression(1);
  few.results.outcomes.resize(kCompression.size() * 2);
  expect_result(few, "first token hardly changes", kOpen);
  expect_result(few, "slowest to the first token", kOpen);
}

TEST(Claims, TurboQuantSlowest) {
  Made m = compression();
  m.change(kTurbo4, "", times(0.7, 1));
  expect_result(m, "generates slowest", kYes);
  m.change(kTurbo4, "", times(2, 1));
  expect_result(m, "generates slowest", kNo);
  m.change(kTurbo4, "", [](Outcome& o) { o.shared = true; });
  expect_result(m, "generates slowest", kNever);
}

// Every cache alone, five times on each of the first `prompts` prompts of docqa, as fast as full.
void run_alone(Made& m, int prompts) {
  for (Outcome& o : m.results.outcomes) o.shared = true;
  for (const std::string& spec : kCompression) {
    for (int i = 0; i < prompts; ++i) {
      for (int repeat = 0; repeat < 5; ++repeat) {
        SoloRun run;
        run.key = {"docqa", 4096, std::to_string(i)};
        run.spec = spec;
        run.repeat = repeat;
        run.ttft_s = 2 + 0.01 * repeat + 0.1 * i;
        run.decode_tokens_per_s = 20 - 0.1 * repeat;
        m.results.solo.push_back(run);
      }
    }
  }
}

// Times of runs alone stand in for steps that caches shared, once there are enough prompts.
TEST(Claims, TimesOfCachesAlone) {
  Made m = compression();
  const std::vector<std::string> timed = {"SnapKV generates", "generates slowest", "not predict speed"};
  run_alone(m, kMinimumPairs - 1);
  for (const std::string& claim : timed) expect_result(m, claim, kNever);
  m.results.solo.clear();
  run_alone(m, kMinimumPairs + 1);
  expect_result(m, "SnapKV generates", kYes);
  expect_result(m, "generates slowest", kNo);
  expect_result(m, "first token hardly changes", kNo);
  EXPECT_EQ(row_of(m.results, "first token hardly changes").limits, "");
  EXPECT_NE(row_of(m.results, "SnapKV generates").reason.find("Each cache ran alone, on 6 prompts."), std::string::npos)
      << row_of(m.results, "SnapKV generates").reason;
  for (SoloRun& run : m.results.solo) {
    if (run.spec == kSnap) run.decode_tokens_per_s /= 2;
    if (run.spec == kTurbo4) run.decode_tokens_per_s /= 3;
    if (run.spec == kTurbo4) run.ttft_s *= 1.3;
  }
  expect_result(m, "SnapKV generates", kNo);
  expect_result(m, "generates slowest", kYes);
  expect_result(m, "slowest to the first token", kYes);
  for (SoloRun& run : m.results.solo) run.error = "out of memory";
  for (const std::string& claim : timed) expect_result(m, claim, kNever);
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
  const std::string page =
      report_page(m.results, report_rows(m.results), {.folders = {}, .notes = {}, .claims = find_claims(m.results)});
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
  const std::string page = report_page(m.results, report_rows(m.results), {.folders = {}, .notes = {}, .claims = studies});
  ASSERT_EQ(json.size(), 15U);
  std::set<std::string> claims;
  for (const ClaimRow& row : studies[0].rows) {
    EXPECT_NE(text.find(row.claim), std::string::npos);
    EXPECT_NE(page.find(row.claim), std::string::npos);
    claims.insert(row.claim);
  }
  EXPECT_EQ(claims.size(), 15U);
  EXPECT_NE(page.find("href=\"#claims\""), std::string::npos);
  EXPECT_EQ(report_page(m.results, report_rows(m.results), {}).find("id=\"claims\""), std::string::npos);
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
  const auto page = [&] {
    return report_page(m.results, report_rows(m.results), {.folders = {}, .notes = {}, .claims = find_claims(m.results)});
  };
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
