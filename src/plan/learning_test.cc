#include "plan/learning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cache/sequence_cache.h"
#include "plan/plan_fixture.h"

namespace kvartet {
namespace {

using test::inputs_of;
using test::smol_model;

Workload workload_of(TaskKind kind) {
  Workload w;
  w.kind = kind;
  w.prompt_tokens = 2000;
  w.output_tokens = 48;
  return w;
}

LearnRequest request_of(const std::vector<TaskKind>& kinds) {
  LearnRequest r;
  for (const TaskKind kind : kinds) r.workloads.push_back(workload_of(kind));
  return r;
}

// Against the integral itself, taken by sums over draws.
TEST(Learning, GainAndRegretAreTheirIntegrals) {
  Rng rng(7);
  for (const Belief b : {Belief{1, 2}, Belief{5, 1}, Belief{0.2, 0.5}}) {
    for (const double known : {0.0, 0.5, 3.0}) {
      double gain = 0;
      double regret = 0;
      double below = 0;
      constexpr int kDraws = 40'000;
      for (int i = 0; i < kDraws; ++i) {
        const double x = std::max(0.0, b.mean + b.sd * rng.normal());
        gain += std::max(0.0, known - x) / kDraws;
        regret += std::max(0.0, x - known) / kDraws;
        below += x < known ? 1.0 / kDraws : 0;
      }
      EXPECT_NEAR(expected_gain(known, b), gain, 0.04) << known << " " << b.mean;
      EXPECT_NEAR(expected_regret(b, known), regret, 0.04) << known << " " << b.mean;
      EXPECT_NEAR(chance_below(known, b), below, 0.02) << known << " " << b.mean;
    }
  }
  EXPECT_EQ(expected_gain(2, {3, 0}), 0);
  EXPECT_EQ(expected_gain(2, {0.5, 0}), 1.5);
  EXPECT_EQ(chance_below(2, {3, 0}), 0);
}

TEST(Learning, TheMostValuableComeFirstWithReasons) {
  const std::vector<EvidenceCell> cells = test::some_evidence();
  const std::vector<Lesson> lessons =
      find_lessons(inputs_of(cells), request_of({TaskKind::kSummary, TaskKind::kExtraction})).value();
  ASSERT_FALSE(lessons.empty());
  EXPECT_LE(lessons.size(), 12U);
  for (std::size_t i = 0; i < lessons.size(); ++i) {
    EXPECT_GE(lessons[i].value, kLeastValue);
    EXPECT_GT(lessons[i].chance, 0);
    EXPECT_LE(lessons[i].chance, 1);
    EXPECT_NE(lessons[i].reason.find("expected"), std::string::npos);
    if (i > 0) {
      EXPECT_LE(lessons[i].value, lessons[i - 1].value);
    }
  }
}

// Whatever could be chosen fits a cap: nothing is measured that nobody could take.
TEST(Learning, OnlyCachesThatFitACapAreWorthIt) {
  LearnRequest r = request_of({TaskKind::kSummary});
  r.memory = {12'000'000};
  r.most = 100;
  const std::vector<Lesson> lessons = find_lessons(inputs_of({}), r).value();
  for (const Lesson& lesson : lessons) {
    EXPECT_LE(predict_bytes(lesson.spec, smol_model().shape, 2000, 48).value().allocated, 12'000'000U) << lesson.spec.canonical;
  }
}

// With memory for everything the reference is taken, and no measurement can change that.
TEST(Learning, WhereNothingIsOpenNothingIsLearned) {
  LearnRequest r = request_of({TaskKind::kSummary, TaskKind::kChat});
  r.memory = {1'000'000'000};
  EXPECT_TRUE(find_lessons(inputs_of({}), r).value().empty());
}

// What was measured is worth less than before, and another lesson comes first.
TEST(Learning, AMeasuredCellIsNotAskedForAgain) {
  const LearnRequest r = request_of({TaskKind::kSingleFact});
  const std::vector<Lesson> before = find_lessons(inputs_of({}), r).value();
  ASSERT_FALSE(before.empty());
  const std::vector<EvidenceCell> cells = {test::cell("needle", 2048, before.front().spec.canonical, 200, 0.004, 0.004)};
  const std::vector<Lesson> after = find_lessons(inputs_of(cells), r).value();
  const auto again = std::find_if(after.begin(), after.end(), [&](const Lesson& l) { return l.spec == before.front().spec; });
  EXPECT_TRUE(again == after.end() || again->value < 0.5 * before.front().value);
}

TEST(Learning, CachesThatAreAlikeAreAskedForOnce) {
  LearnRequest r = request_of({TaskKind::kSingleFact, TaskKind::kSummary});
  r.most = 1000;
  const std::vector<Lesson> lessons = find_lessons(inputs_of({}), r).value();
  std::set<std::pair<std::string, TaskKind>> seen;
  for (const Lesson& l : lessons) EXPECT_TRUE(seen.insert({l.spec.canonical, l.workload.kind}).second) << l.spec.canonical;
  const auto count = [&](const std::string& name) {
    return std::count_if(lessons.begin(), lessons.end(), [&](const Lesson& l) {
      return l.workload.kind == TaskKind::kSingleFact && l.spec.canonical.starts_with(name);
    });
  };
  EXPECT_LE(count("q4_0"), 1);  // with and without a rotation it is one format of 4.5 bits
}

TEST(Learning, TheSameInputsGiveTheSameLessons) {
  PlanInputs in = inputs_of({});
  const LearnRequest r = request_of({TaskKind::kExtraction});
  const std::vector<Lesson> a = find_lessons(in, r).value();
  std::reverse(in.candidates.begin(), in.candidates.end());
  const std::vector<Lesson> b = find_lessons(in, r).value();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].spec.canonical, b[i].spec.canonical);
    EXPECT_DOUBLE_EQ(a[i].value, b[i].value);
  }
}

TEST(Learning, ASenselessWorkloadOrCapIsRefused) {
  LearnRequest r = request_of({TaskKind::kChat});
  r.memory = {10};
  EXPECT_EQ(find_lessons(inputs_of({}), r).status().code(), Code::kUsage);
  r = request_of({TaskKind::kChat});
  r.workloads[0].prompt_tokens = 9000;
  EXPECT_EQ(find_lessons(inputs_of({}), r).status().code(), Code::kExhausted);
}

}  // namespace
}  // namespace kvartet
