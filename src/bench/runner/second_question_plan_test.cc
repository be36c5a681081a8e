// Second questions in the plan and the run of a benchmark.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/runner/benchmark.h"
#include "bench/runner/benchmark_fixture.h"
#include "bench/runner/estimate.h"
#include "bench/runner/predictions.h"
#include "core/memory_file_system.h"
#include "engine/byte_vocabulary.h"

namespace kvartet {
namespace {

class SecondQuestionPlan : public BenchmarkFixture {
 protected:
  static std::vector<CacheSpec> specs(const char* name) {
    std::vector<CacheSpec> out(1);
    out[0].canonical = name;
    return out;
  }
  static BenchmarkHooks hooks() {
    BenchmarkHooks h;
    h.measure = [](const PreparedSample& sample, std::span<const CacheSpec> missing,
                   const Engine::Progress&) -> Result<std::vector<Outcome>> {
      std::vector<Outcome> out;
      for (const CacheSpec& spec : missing) {
        Outcome o;
        o.key = sample.record.key;
        o.spec = spec.canonical;
        o.prediction = sample.sample.gold;
        o.gold_log_likelihood = -0.1;
        out.push_back(o);
      }
      return out;
    };
    return h;
  }
};

// The three positions of one question are three samples, of one document; the conversation shares the document's rows, too.
TEST_F(SecondQuestionPlan, IsACellBesideTheOtherPositions) {
  BenchmarkRequest request;
  request.tasks = {"needle:questions=3"};
  request.contexts = {1024};
  request.samples = 6;
  request.question_positions = {kQuestionPositions.begin(), kQuestionPositions.end()};
  const std::vector<PlannedTask> tasks = plan_benchmark(request, vocabulary_, shape_, files_).value();
  ASSERT_EQ(tasks.size(), 3U);
  for (std::size_t i = 0; i < 6; ++i) {
    const PreparedSample& seen = tasks[0].samples[i];
    const PreparedSample& second = tasks[2].samples[i];
    EXPECT_EQ(second.record.key.position, QuestionPosition::kSecond);
    EXPECT_EQ(second.record.key.sample, seen.record.key.sample);
    EXPECT_EQ(second.record.document, seen.record.document);
    EXPECT_EQ(second.document, tasks[0].samples[i % 3 == 0 ? i + 1 : i - 1].prompt());
    EXPECT_GT(second.shared_tokens, 500);
    EXPECT_EQ(second.shared_tokens, seen.shared_tokens);
    EXPECT_TRUE(std::equal(seen.document.begin(), seen.document.begin() + seen.shared_tokens, second.document.begin()));
  }
  Store out = store();
  const auto caches = specs("full");
  int documents = 0;
  BenchmarkHooks h = hooks();
  h.end_document = [&] { ++documents; };
  EXPECT_EQ(run_benchmark(tasks, caches, out, h).value().samples_run, 18);
  EXPECT_EQ(documents, 2);
  EXPECT_EQ(run_benchmark(tasks, caches, out, hooks()).value().samples_resumed, 18);
  ASSERT_TRUE(write_predictions(files_, "out", out.load().value()).ok());
  EXPECT_TRUE(files_.exists("out/predictions/needle:questions=3/1024-second/full.jsonl"));
  // Asked second alone, or with more documents: the same conversations.
  request.question_positions = {QuestionPosition::kSecond};
  request.samples = 9;
  const std::vector<PlannedTask> later = plan_benchmark(request, vocabulary_, shape_, files_).value();
  ASSERT_EQ(later.size(), 1U);
  const BenchmarkSummary more = run_benchmark(later, caches, out, hooks()).value();
  EXPECT_EQ(more.samples_resumed, 6);
  EXPECT_EQ(more.samples_run, 3);
  // A dry run counts what a document's first prompt leaves to the others.
  const RunRates rates = {.prefill_tokens_per_s = 1, .decode_tokens_per_s = 1e12, .open_s = 0};
  EXPECT_EQ(estimate_run(tasks, {}, shape_, rates).shared_prompts, 16);
}

TEST_F(SecondQuestionPlan, NeedsTwoQuestionsAboutADocument) {
  BenchmarkRequest request;
  request.tasks = {"needle"};
  request.contexts = {1024};
  request.samples = 2;
  request.question_positions = {QuestionPosition::kSecond};
  const auto refusal = [&] { return plan_benchmark(request, vocabulary_, shape_, files_).status(); };
  EXPECT_EQ(refusal().code(), Code::kUsage);
  EXPECT_EQ(refusal().message(),
            "--question-position second needs at least two questions about a document, and the prompts of needle at 1024 tokens "
            "have one each; give --task needle:questions=4.");
  request.tasks = {"needle:questions=4"};
  request.contexts = {2048};  // four facts and a byte a token
  request.samples = 1;
  EXPECT_NE(refusal().message().find("give --samples 2 or more"), std::string::npos) << refusal().message();
  request.samples = 5;  // the second document has one question
  std::vector<PlannedTask> tasks = plan_benchmark(request, vocabulary_, shape_, files_).value();
  ASSERT_EQ(tasks.size(), 1U);
  EXPECT_EQ(tasks[0].samples.size(), 4U);
  EXPECT_EQ(tasks[0].note,
            "needle:questions=4 at 2048 tokens: 1 question is the only one about the document, left out at --question-position "
            "second.");
  request.tasks = {"needle"};
  request.question_positions = {QuestionPosition::kSeen, QuestionPosition::kSecond};
  tasks = plan_benchmark(request, vocabulary_, shape_, files_).value();
  ASSERT_EQ(tasks.size(), 1U);
  EXPECT_EQ(tasks[0].position, QuestionPosition::kSeen);
  EXPECT_NE(tasks[0].note.find("have one each: only --question-position seen is run; give --task needle:questions=4."),
            std::string::npos)
      << tasks[0].note;

  put("my.jsonl", nlohmann::json{{"input", "Why?"}, {"context", "Some text of a few words."}, {"answers", {"x"}}}.dump() + "\n");
  request.tasks = {"my.jsonl"};
  request.metric = "contains";
  request.question_positions = {QuestionPosition::kSecond};
  EXPECT_NE(refusal().message().find("give it several lines with the same context"), std::string::npos) << refusal().message();
}

// A conversation is longer than the prompt that --context was asked for.
TEST_F(SecondQuestionPlan, AConversationBeyondTheModelsContextIsRefused) {
  BenchmarkRequest request;
  request.tasks = {"needle:questions=2"};
  request.contexts = {4096};
  request.samples = 2;
  request.question_positions = {QuestionPosition::kSecond};
  const Status status = plan_benchmark(request, vocabulary_, shape_, files_).status();
  EXPECT_EQ(status.code(), Code::kExhausted);
  const std::size_t hint = status.message().find("give --context ");
  ASSERT_NE(hint, std::string::npos) << status.message();
  request.contexts = {std::stoi(status.message().substr(hint + 15)) - 32};  // documents end at sentences
  EXPECT_TRUE(plan_benchmark(request, vocabulary_, shape_, files_).ok()) << status.message();
}

}  // namespace
}  // namespace kvartet
