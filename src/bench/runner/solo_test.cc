// compression.md 14: repeats in turns, resumed, reported.
#include "bench/runner/solo.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <map>

#include "bench/runner/estimate.h"
#include "bench/runner/solo_child.h"

namespace kvartet {
namespace {

PlannedTask planned(const std::vector<int>& prompt_tokens, QuestionPosition position = QuestionPosition::kSeen) {
  PlannedTask task;
  task.task = "needle";
  task.metric = "contains";
  task.context = 2048;
  task.position = position;
  for (std::size_t i = 0; i < prompt_tokens.size(); ++i) {
    PreparedSample s;
    s.record.key = {"needle", 2048, "n" + std::to_string(i), position};
    s.record.prompt_hash = "aa";
    s.record.prompt_tokens = prompt_tokens[i];
    s.record.answers_json = "[]";
    s.record.classes_json = "null";
    s.sample.max_new_tokens = 16;
    task.samples.push_back(std::move(s));
  }
  return task;
}

class SoloTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvartet_solo_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Store store() {
    RunRecord run;
    run.identity.model_hash = "h";
    run.started = "2025-01-01T00:00:00Z";
    return Store::open(FileSystem::real(), root_, run).value();
  }
  // What the shared run left: every sample through every cache, with the text "said".
  static void share(Store& store, const PlannedTask& task, const std::vector<CacheSpec>& specs, const std::string& failing = "") {
    for (const PreparedSample& s : task.samples) {
      std::vector<Outcome> outcomes;
      for (const CacheSpec& spec : specs) {
        Outcome o;
        o.key = s.record.key;
        o.spec = spec.canonical;
        o.prediction = "said";
        o.ttft_s = 2;
        o.completion_tokens = 11;
        o.decode_tokens_per_s = 5.5;
        if (spec.canonical == failing) o.error = "no room";
        outcomes.push_back(o);
      }
      ASSERT_TRUE(store.finish_sample(s.record, outcomes).ok());
    }
  }
  static std::vector<CacheSpec> specs(std::initializer_list<const char*> names) {
    std::vector<CacheSpec> out;
    for (const char* name : names) {
      CacheSpec spec;
      spec.canonical = name;
      out.push_back(spec);
    }
    return out;
  }
  SoloHooks hooks() {
    SoloHooks h;
    h.measure = [this](const PreparedSample& sample, const CacheSpec& spec, double limit_s) -> Result<SoloRun> {
      calls_.push_back(spec.canonical);
      samples_[sample.record.key.sample] += 1;
      limit_s_ = limit_s;
      if (interrupt_at_ == static_cast<int>(calls_.size())) return cancelled("stop");
      SoloRun run;
      run.text = spec.canonical == rambling_ ? "something else" : "said";
      run.ttft_s = 1;
      if (spec.canonical == dying_) run.error = "the process of its own was ended by signal 9 (Killed)";
      return run;
    };
    return h;
  }

  std::string root_;
  std::vector<std::string> calls_;
  std::map<std::string, int> samples_;
  double limit_s_ = 0;
  int interrupt_at_ = 0;
  std::string dying_;
  std::string rambling_;
};

TEST_F(SoloTest, TakesThePromptOfMedianLength) {
  EXPECT_EQ(representative_sample(planned({50, 10, 30, 20, 40}))->record.key.sample, "n2");
  EXPECT_EQ(representative_sample(planned({7, 9, 7, 9}))->record.key.sample, "n0");  // the first of the lower middle
  EXPECT_EQ(representative_sample(planned({})), nullptr);
}

TEST_F(SoloTest, CachesTakeTurnsAndEveryRoundBeginsWithAnother) {
  Store out = store();
  const PlannedTask task = planned({100, 300, 200});
  const auto caches = specs({"full", "kivi", "snapkv"});
  share(out, task, caches);
  const std::vector<SoloWork> work = {{&task, caches}};
  const SoloSummary summary = run_solo(work, 3, out, hooks()).value();
  EXPECT_EQ(calls_, (std::vector<std::string>{"full", "kivi", "snapkv", "kivi", "snapkv", "full", "snapkv", "full", "kivi"}));
  EXPECT_EQ(samples_, (std::map<std::string, int>{{"n2", 9}}));
  EXPECT_EQ(summary.run, 9);
  EXPECT_TRUE(summary.notes.empty());
  // 120 s and ten times 2 s + 11 tokens at 5.5 a second
  EXPECT_DOUBLE_EQ(limit_s_, 120 + 10 * (2 + 2));
  const StoredResults r = out.load().value();
  ASSERT_EQ(r.solo.size(), 9U);
  EXPECT_EQ(r.solo[2].spec, "full");
  EXPECT_EQ(r.solo[2].repeat, 2);
  EXPECT_EQ(r.solo[2].key.sample, "n2");
}

TEST_F(SoloTest, ARepeatedCommandRunsOnlyWhatIsMissing) {
  Store out = store();
  const PlannedTask task = planned({100});
  const auto caches = specs({"full", "kivi"});
  share(out, task, caches);
  const std::vector<SoloWork> work = {{&task, caches}};
  interrupt_at_ = 4;
  const SoloSummary stopped = run_solo(work, 3, out, hooks()).value();
  EXPECT_TRUE(stopped.cancelled);
  EXPECT_EQ(stopped.run, 3);
  EXPECT_EQ(out.load().value().solo.size(), 3U);

  interrupt_at_ = 0;
  const SoloSummary rest = run_solo(work, 3, out, hooks()).value();
  EXPECT_EQ(rest.resumed, 3);
  EXPECT_EQ(rest.run, 3);
  const SoloSummary more = run_solo(work, 5, out, hooks()).value();
  EXPECT_EQ(more.resumed, 6);
  EXPECT_EQ(more.run, 4);
}

// More samples later move the median; the repeats of one cell stay on one prompt.
TEST_F(SoloTest, APromptOnceTakenStays) {
  Store out = store();
  const auto caches = specs({"full"});
  const PlannedTask few = planned({100});
  share(out, few, caches);
  const std::vector<SoloWork> first = {{&few, caches}};
  ASSERT_TRUE(run_solo(first, 2, out, hooks()).ok());
  const PlannedTask many = planned({100, 200, 300});
  share(out, many, caches);
  const std::vector<SoloWork> second = {{&many, caches}};
  ASSERT_TRUE(run_solo(second, 3, out, hooks()).ok());
  EXPECT_EQ(samples_, (std::map<std::string, int>{{"n0", 3}}));
}

TEST_F(SoloTest, FailuresAreStoredAndTriedAgain) {
  Store out = store();
  const PlannedTask task = planned({100});
  const auto caches = specs({"full", "kivi"});
  share(out, task, caches);
  const std::vector<SoloWork> work = {{&task, caches}};
  dying_ = "kivi";
  EXPECT_EQ(run_solo(work, 2, out, hooks()).value().failed, 2);
  EXPECT_EQ(out.load().value().solo.size(), 4U);
  dying_.clear();
  calls_.clear();
  EXPECT_EQ(run_solo(work, 2, out, hooks()).value().failed, 0);
  EXPECT_EQ(calls_, (std::vector<std::string>{"kivi", "kivi"}));
}

TEST_F(SoloTest, AnotherTextThanInCompanyIsTold) {
  Store out = store();
  const PlannedTask task = planned({100});
  const auto caches = specs({"full", "kivi"});
  share(out, task, caches);
  const std::vector<SoloWork> work = {{&task, caches}};
  rambling_ = "kivi";
  const SoloSummary summary = run_solo(work, 1, out, hooks()).value();
  ASSERT_EQ(summary.notes.size(), 1U);
  EXPECT_NE(summary.notes[0].find("kivi"), std::string::npos) << summary.notes[0];
  EXPECT_NE(summary.notes[0].find("another text"), std::string::npos) << summary.notes[0];
}

TEST_F(SoloTest, WhatFailedInCompanyIsNotTriedAlone) {
  Store out = store();
  const PlannedTask task = planned({100});
  const auto caches = specs({"full", "big"});
  share(out, task, caches, "big");
  const std::vector<SoloWork> work = {{&task, caches}};
  const SoloSummary summary = run_solo(work, 2, out, hooks()).value();
  EXPECT_EQ(calls_, (std::vector<std::string>{"full", "full"}));
  ASSERT_EQ(summary.notes.size(), 1U);
  EXPECT_NE(summary.notes[0].find("big is not timed alone"), std::string::npos) << summary.notes[0];
}

TEST_F(SoloTest, OfTwoPositionsTheFirstIsTimed) {
  const std::vector<PlannedTask> plan = {planned({100}), planned({100}, QuestionPosition::kUnseen)};
  const std::vector<const PlannedTask*> timed = solo_tasks(plan);
  ASSERT_EQ(timed.size(), 1U);
  EXPECT_EQ(timed[0], &plan[0]);
}

TEST_F(SoloTest, TheEstimateCountsThem) {
  const std::vector<PlannedTask> plan = {planned({1000, 2000, 3000})};
  ModelShape shape;
  shape.context = 8192;
  shape.layers.assign(2, LayerShape{.heads = 2, .kv_heads = 2, .head_dim = 64, .window = 0});
  const std::vector<CacheSpec> caches = {*parse_spec("full"), *parse_spec("q8_0")};
  const RunRates rates = {.prefill_tokens_per_s = 100, .decode_tokens_per_s = 10, .open_s = 3};
  const RunEstimate shared = estimate_run(plan, caches, shape, rates);
  const RunEstimate both = estimate_run(plan, caches, shape, rates, 5);
  EXPECT_EQ(shared.solo_runs, 0);
  EXPECT_EQ(both.solo_runs, 10);
  // Each: 3 s to open, twice 256 tokens and 8 answer tokens, then 2,000 tokens and 16.
  EXPECT_NEAR(both.solo_hours * 3600, 10 * (3 + 2 * (2.56 + 0.8) + 20 + 1.6), 1e-9);
  EXPECT_NEAR(both.hours, shared.hours + both.solo_hours, 1e-12);
  // More runs than an int counts.
  const RunEstimate endless = estimate_run(plan, caches, shape, rates, std::numeric_limits<int>::max());
  EXPECT_EQ(endless.solo_runs, 2 * std::int64_t{std::numeric_limits<int>::max()});
  EXPECT_NEAR(endless.solo_hours / both.solo_hours, static_cast<double>(endless.solo_runs) / 10, 1e-3);
}

}  // namespace
}  // namespace kvartet
