// Stored results of the two papers' caches, all like full until a test changes them, and what a claim must come to on them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "report/claims.h"
#include "report/report_fixture.h"

namespace kvartet {

inline constexpr const char* kKivi2 = "kivi:bits=2,group=32,residual=32";
inline constexpr const char* kKivi4 = "kivi:bits=4,group=32,residual=32";
inline constexpr const char* kTurbo3 = "turboquant:bits=3,variant=mse,rotation=hadamard,residual=0,seed=1";
inline constexpr const char* kTurbo4 = "turboquant:bits=4,variant=mse,rotation=hadamard,residual=0,seed=1";
inline constexpr const char* kSnap = "snapkv:budget=0.25,window=32,kernel=7,pool=max";
inline constexpr const char* kCam = "cam:target=1024,interval=32,merge=32,base=streamingllm,seed=1";
inline const std::vector<std::string> kCompression = {"full", kKivi2, kKivi4, kTurbo3, kTurbo4, kSnap, kCam};

inline std::string oracle(const std::string& keys) { return "oracle:budget=0.03125,chunk=1,index=f16,keys=" + keys; }
inline std::string landmarks(const std::string& index, int chunk = 1) {
  return "select:budget=0.03125,chunk=" + std::to_string(chunk) + ",index=" + index + ",keys=f16";
}
inline const std::string kShadow = "shadowkv:budget=0.015625,chunk=8,index=bf16,keys=svd,rank=30";
inline const std::string kYakv = "yakv:budget=0.03125,chunk=1,index=higgs2,keys=higgs4";

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
inline Change likelier(double nats) {
  return [=](Outcome& o) { *o.gold_log_likelihood += nats + (o.completion_tokens % 2 == 0 ? 0.002 : -0.002); };
}
inline Change scored(double points) {
  return [=](Outcome& o) { *o.score += points / 100; };
}
// Some samples up, as many down: nothing that few samples could decide.
inline Change scattered(double nats) {
  return [=](Outcome& o) { *o.gold_log_likelihood += o.completion_tokens % 2 == 0 ? nats : -nats; };
}
inline Change ratio(double times) {
  return [=](Outcome& o) {
    o.allocated_bytes = static_cast<std::int64_t>(1e6);
    o.f16_bytes = static_cast<std::int64_t>(times * 1e6);
  };
}

inline Made compression(int n = 60) {
  Made m;
  m.results.runs = {made_run()};
  m.task("docqa", "contains");
  m.task("longbench/multi_news", "rouge");
  m.task("fewshot", "classification");
  for (const char* task : {"docqa", "longbench/multi_news", "fewshot"}) m.samples(task, n, kCompression);
  return m;
}

inline const std::vector<std::string> kOffloading = {"full",
                                                     oracle("f16"),
                                                     oracle("svd,rank=30"),
                                                     oracle("higgs2"),
                                                     landmarks("bf16", 8),
                                                     landmarks("higgs2"),
                                                     landmarks("higgs1"),
                                                     landmarks("residual"),
                                                     kShadow,
                                                     kYakv};

inline Made offloading(int n = 60) {
  Made m;
  m.results.runs = {made_run()};
  m.task("needle", "contains");
  m.task("multineedle:k=4", "keywords");
  for (const char* task : {"needle", "multineedle:k=4"}) m.samples(task, n, kOffloading);
  return m;
}

inline ClaimRow row_of(const StoredResults& results, const std::string& part, const StoredResults* other = nullptr) {
  for (const StudyClaims& study : find_claims(results, other)) {
    for (const ClaimRow& row : study.rows) {
      if (row.claim.find(part) != std::string::npos) return row;
    }
  }
  ADD_FAILURE() << "no claim about " << part;
  return {};
}

// gtest prints the reason when the result is another.
inline void expect_result(const Made& m, const std::string& part, ClaimResult expected, const StoredResults* other = nullptr) {
  const ClaimRow row = row_of(m.results, part, other);
  EXPECT_EQ(row.result, expected) << part << ": " << claim_result_name(row.result) << " because " << row.reason << " ["
                                  << row.figure << "]";
  EXPECT_FALSE(row.reason.empty()) << part;
  EXPECT_FALSE(row.rule.empty()) << part;
  // What never ran can be run, and is not mixed with what an interval leaves open.
  EXPECT_EQ(row.to_run.find("kvartet ") != std::string::npos, row.result == ClaimResult::kNotRun) << part << ": " << row.to_run;
}

inline constexpr ClaimResult kYes = ClaimResult::kReproduced;
inline constexpr ClaimResult kNo = ClaimResult::kNotReproduced;
inline constexpr ClaimResult kOpen = ClaimResult::kUndecided;
inline constexpr ClaimResult kNever = ClaimResult::kNotRun;

inline Change times(double factor_rate, double factor_ttft) {
  return [=](Outcome& o) {
    o.decode_tokens_per_s *= factor_rate;
    o.ttft_s *= factor_ttft;
  };
}

}  // namespace kvartet
