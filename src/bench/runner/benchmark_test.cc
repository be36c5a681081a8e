#include "bench/runner/benchmark.h"

#include "bench/runner/benchmark_fixture.h"
#include "bench/runner/progress_lines.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/runner/estimate.h"
#include "bench/runner/predictions.h"
#include "bench/score.h"
#include "core/memory_file_system.h"
#include "engine/byte_vocabulary.h"
#include "results/store_schema.h"

namespace kvartet {
namespace {

class HeldClock : public Clock {
 public:
  double seconds() const override { return now; }
  double now = 0;
};

class BenchmarkTest : public BenchmarkFixture {
 protected:
  std::vector<PlannedTask> plan(int samples = 3) {
    BenchmarkRequest request;
    request.tasks = {"needle", "multineedle:k=2"};
    request.contexts = {1024, 2048};
    request.samples = samples;
    return plan_benchmark(request, vocabulary_, shape_, files_).value();
  }
  std::vector<PlannedTask> plan_of_own_file(std::string_view lines) {
    put("my.jsonl", lines);
    BenchmarkRequest request;
    request.tasks = {"my.jsonl"};
    request.metric = "contains";
    request.contexts = {1024};
    return plan_benchmark(request, vocabulary_, shape_, files_).value();
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
  // A measurer that answers with the gold text and counts its calls.
  BenchmarkHooks hooks() {
    BenchmarkHooks h;
    h.clock = &clock_;
    h.measure = [this](const PreparedSample& sample, std::span<const CacheSpec> missing, const Engine::Progress&) {
      return measure(sample, missing);
    };
    return h;
  }
  Result<std::vector<Outcome>> measure(const PreparedSample& sample, std::span<const CacheSpec> missing) {
    ++calls_;
    clock_.now += 2;
    std::vector<Outcome> out;
    for (const CacheSpec& spec : missing) {
      seen_[spec.canonical].push_back(sample.record.prompt_hash);
      Outcome o;
      o.key = sample.record.key;
      o.spec = spec.canonical;
      o.prediction = "Say \"" + sample.sample.gold + "\"\n";
      o.gold_log_likelihood = -0.1;
      o.completion_tokens = 3;
      out.push_back(o);
    }
    return out;
  }

  HeldClock clock_;
  int calls_ = 0;
  std::map<std::string, std::vector<std::string>> seen_;
};

TEST_F(BenchmarkTest, PromptAndAnswerStayWithinTheContext) {
  const std::vector<PlannedTask> tasks = plan();
  ASSERT_EQ(tasks.size(), 4U);
  for (const PlannedTask& task : tasks) {
    ASSERT_EQ(task.samples.size(), 3U);
    for (const PreparedSample& s : task.samples) {
      const int answer = std::max(s.sample.max_new_tokens, s.record.gold_tokens);
      EXPECT_LE(s.record.prompt_tokens + answer, task.context);
      EXPECT_GT(s.record.prompt_tokens + answer, task.context - 60);
      EXPECT_EQ(s.record.dropped_tokens, 0);
      const std::string prompt = vocabulary_.detokenize(s.prompt());
      EXPECT_NE(prompt.find("What "), std::string::npos);
      EXPECT_NE(prompt.find(s.sample.answers[0]), std::string::npos);
    }
  }
}

TEST_F(BenchmarkTest, EveryCacheSeesTheSameIdsAndScoresAreStored) {
  Store out = store();
  const auto caches = specs({"full", "q8_0"});
  const BenchmarkSummary summary = run_benchmark(plan(), caches, out, hooks()).value();
  EXPECT_EQ(summary.samples_run, 12);
  EXPECT_EQ(summary.samples_resumed, 0);
  EXPECT_FALSE(summary.cancelled);
  EXPECT_EQ(seen_["full"], seen_["q8_0"]);
  const StoredResults r = out.load().value();
  EXPECT_EQ(r.samples.size(), 12U);
  ASSERT_EQ(r.outcomes.size(), 24U);
  for (const Outcome& o : r.outcomes) EXPECT_EQ(o.score, 1.0);  // the gold text holds every value
}

TEST_F(BenchmarkTest, ARepeatedCommandRunsOnlyWhatIsMissing) {
  Store out = store();
  const auto caches = specs({"full", "q8_0"});
  const auto tasks = plan();
  std::atomic<bool> cancel = false;
  BenchmarkHooks first = hooks();
  first.cancel = &cancel;
  first.progress = [&](const BenchmarkProgress& p) {
    if (p.done == 5) cancel = true;
  };
  const BenchmarkSummary stopped = run_benchmark(tasks, caches, out, first).value();
  EXPECT_TRUE(stopped.cancelled);
  EXPECT_EQ(stopped.samples_run, 5);
  EXPECT_EQ(out.load().value().samples.size(), 5U);

  calls_ = 0;
  const BenchmarkSummary rest = run_benchmark(tasks, caches, out, hooks()).value();
  EXPECT_EQ(rest.samples_resumed, 5);
  EXPECT_EQ(calls_, 7);
  // A cache more: only that one runs.
  seen_.clear();
  const auto three = specs({"full", "q8_0", "kivi"});
  ASSERT_TRUE(run_benchmark(tasks, three, out, hooks()).ok());
  EXPECT_EQ(seen_.size(), 1U);
  EXPECT_EQ(seen_["kivi"].size(), 12U);
}

TEST_F(BenchmarkTest, AnInterruptedSampleIsNotStored) {
  Store out = store();
  BenchmarkHooks h = hooks();
  h.measure = [&](const PreparedSample& sample, std::span<const CacheSpec> missing,
                  const Engine::Progress&) -> Result<std::vector<Outcome>> {
    if (calls_ == 2) return cancelled("stop");
    return measure(sample, missing);
  };
  const auto caches = specs({"full"});
  const BenchmarkSummary summary = run_benchmark(plan(), caches, out, h).value();
  EXPECT_TRUE(summary.cancelled);
  EXPECT_EQ(out.load().value().outcomes.size(), 2U);
}

TEST_F(BenchmarkTest, AFailedSampleIsCountedAndTriedAgain) {
  Store out = store();
  const auto caches = specs({"full", "big"});
  const auto tasks = plan(1);
  BenchmarkHooks h = hooks();
  h.measure = [&](const PreparedSample& sample, std::span<const CacheSpec> missing, const Engine::Progress&) {
    Result<std::vector<Outcome>> outcomes = measure(sample, missing);
    for (Outcome& o : *outcomes) {
      if (o.spec == "big") o.error = "The cache needs more memory than there is.";
    }
    return outcomes;
  };
  EXPECT_EQ(run_benchmark(tasks, caches, out, h).value().outcomes_failed, 4);
  const StoredResults r = out.load().value();
  EXPECT_EQ(std::count_if(r.outcomes.begin(), r.outcomes.end(), [](const Outcome& o) { return o.failed() && !o.score; }), 4);
  seen_.clear();
  const BenchmarkSummary again = run_benchmark(tasks, caches, out, hooks()).value();
  EXPECT_EQ(again.outcomes_failed, 0);
  EXPECT_FALSE(seen_.contains("full"));
  EXPECT_EQ(seen_["big"].size(), 4U);
}

TEST(ProgressLines, ComeAtOnceAndThenEveryTenSeconds) {
  HeldClock clock;
  ProgressLines lines(clock);
  std::vector<double> told;
  for (clock.now = 0; clock.now < 40; clock.now += 3) {
    if (lines.due()) told.push_back(clock.now);
  }
  EXPECT_EQ(told, (std::vector<double>{0, 12, 24, 36}));
}

TEST_F(BenchmarkTest, ProgressTellsRateAndTimeLeft) {
  Store out = store();
  std::vector<BenchmarkProgress> told;
  BenchmarkHooks h = hooks();
  h.progress = [&](const BenchmarkProgress& p) { told.push_back(p); };
  const auto caches = specs({"full"});
  const auto tasks = plan(2);
  ASSERT_TRUE(run_benchmark(tasks, caches, out, h).ok());
  EXPECT_EQ(told.front().seconds_left, -1);
  EXPECT_EQ(told.front().total, 8);
  // After the first sample: 2 s for its tokens, so the rest takes 2 s * rest / first.
  double rest = 0;
  for (const PlannedTask& t : tasks) {
    for (const PreparedSample& s : t.samples) rest += s.record.prompt_tokens;
  }
  const double first = tasks[0].samples[0].record.prompt_tokens;
  EXPECT_EQ(told[1].done, 1);
  EXPECT_NEAR(told[1].tokens_per_s, first / 2, 1e-9);
  EXPECT_NEAR(told[1].seconds_left, 2 * (rest - first) / first, 1e-6);
  EXPECT_NEAR(told.back().seconds_left, 0, 1e-9);
}

TEST_F(BenchmarkTest, LongRecordsLoseTheirMiddleAndKeepTheirQuestion) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "word" + std::to_string(i) + " ";
  nlohmann::json record = {{"input", "Which word?"}, {"context", text}, {"answers", {"word7"}}, {"_id", "r1"}};
  const std::vector<PlannedTask> tasks = plan_of_own_file(record.dump() + "\n");
  const PreparedSample& s = tasks.at(0).samples.at(0);
  EXPECT_GT(s.record.dropped_tokens, 0);
  EXPECT_LE(s.record.prompt_tokens + s.sample.max_new_tokens, 1024);
  const std::string prompt = vocabulary_.detokenize(s.prompt());
  EXPECT_NE(prompt.find("word0 "), std::string::npos);
  EXPECT_NE(prompt.find("word399"), std::string::npos);
  EXPECT_EQ(prompt.find("word150 "), std::string::npos);
  EXPECT_FALSE(s.question.empty());
}

// The user's own file, one document and several questions: prompts that begin alike are known as such, wherever they stand.
TEST_F(BenchmarkTest, RecordsWithTheSameContextShareIt) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "word" + std::to_string(i) + " ";
  std::string lines;
  const auto add = [&](const std::string& id, const std::string& context, const std::string& input) {
    lines += nlohmann::json{{"_id", id}, {"context", context}, {"input", input}, {"answers", {"x"}}}.dump() + "\n";
  };
  add("a1", text, "Which word?");
  add("b1", "Another text. " + text, "Which?");
  add("a2", text, "And which word is the last one?");
  add("c1", "Short.", "One?");
  add("c2", "Short.", "Two?");
  const std::vector<PlannedTask> tasks = plan_of_own_file(lines);
  const std::vector<PreparedSample>& s = tasks.at(0).samples;
  ASSERT_EQ(s.size(), 5U);
  EXPECT_EQ(s[0].shared_tokens, static_cast<int>(s[0].document.size()) - 2);
  EXPECT_EQ(s[2].shared_tokens, s[0].shared_tokens);
  EXPECT_EQ(s[1].shared_tokens, 0);
  EXPECT_EQ(s[3].shared_tokens, 0) << "too short to be worth it";
  EXPECT_EQ(s[3].record.document, s[4].record.document) << "but not independent";
  EXPECT_EQ(s[0].record.document, s[2].record.document);
  EXPECT_NE(s[0].record.document, s[1].record.document);

  Store out = store();
  std::vector<std::string> order;
  BenchmarkHooks h = hooks();
  h.measure = [&](const PreparedSample& sample, std::span<const CacheSpec> missing, const Engine::Progress&) {
    order.push_back(sample.record.key.sample);
    return measure(sample, missing);
  };
  h.end_document = [&] { order.emplace_back("end"); };
  const auto caches = specs({"full"});
  ASSERT_TRUE(run_benchmark(tasks, caches, out, h).ok());
  EXPECT_EQ(order, (std::vector<std::string>{"a1", "a2", "end", "b1", "end", "c1", "end", "c2", "end"}));
  const StoredResults r = out.load().value();
  EXPECT_EQ(r.samples[0].document, r.samples[2].document);
  EXPECT_EQ(r.samples[0].ordinal, 0);  // stored in the order of the file
  EXPECT_EQ(r.samples[1].key.sample, "b1");
}

// Prompts that lose their middle keep more or less of the document's end: only what all have in common is shared.
TEST_F(BenchmarkTest, CutDocumentsShareTheirFirstHalf) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "word" + std::to_string(i) + " ";
  std::string lines;
  for (const std::string& input :
       {std::string("Which word?"), std::string("Which word is it that comes last in the text above?")})
    lines += nlohmann::json{{"_id", input}, {"context", text}, {"input", input}, {"answers", {"x"}}}.dump() + "\n";
  const std::vector<PlannedTask> tasks = plan_of_own_file(lines);
  const std::vector<PreparedSample>& s = tasks.at(0).samples;
  EXPECT_NE(s[0].document, s[1].document);
  EXPECT_EQ(s[0].record.document, s[1].record.document);
  EXPECT_EQ(s[0].shared_tokens, s[1].shared_tokens);
  EXPECT_GT(s[0].shared_tokens, static_cast<int>(s[0].document.size()) / 3);
  EXPECT_TRUE(std::equal(s[0].document.begin(), s[0].document.begin() + s[0].shared_tokens, s[1].document.begin()));
}

// Seen and unseen, all questions about a document one after the other; a run that was interrupted within one goes on there.
TEST_F(BenchmarkTest, DocumentsRunInOnePieceAndResumeWithin) {
  BenchmarkRequest request;
  request.tasks = {"needle:questions=2"};
  request.contexts = {1024};
  request.samples = 4;
  request.question_positions = {QuestionPosition::kSeen, QuestionPosition::kUnseen};
  const std::vector<PlannedTask> tasks = plan_benchmark(request, vocabulary_, shape_, files_).value();
  Store out = store();
  std::atomic<bool> cancel = false;
  std::vector<std::string> order;
  BenchmarkHooks h = hooks();
  h.cancel = &cancel;
  h.measure = [&](const PreparedSample& sample, std::span<const CacheSpec> missing, const Engine::Progress&) {
    EXPECT_GT(sample.shared_tokens, 500);
    order.push_back(fmt::format("{} {}", sample.record.key.sample, question_position_name(sample.record.key.position)));
    cancel = order.size() == 2;
    return measure(sample, missing);
  };
  h.end_document = [&] { order.emplace_back("end"); };
  const auto caches = specs({"full"});
  EXPECT_TRUE(run_benchmark(tasks, caches, out, h).value().cancelled);
  EXPECT_EQ(order, (std::vector<std::string>{"0.0 seen", "0.1 seen"}));
  cancel = false;
  EXPECT_EQ(run_benchmark(tasks, caches, out, h).value().samples_run, 6);
  // The first sample of the plan that is missing is now one of document 1.
  EXPECT_EQ(order, (std::vector<std::string>{"0.0 seen", "0.1 seen", "1.0 seen", "1.1 seen", "1.0 unseen", "1.1 unseen", "end",
                                             "0.0 unseen", "0.1 unseen", "end"}));
}

// Samples of a store of format 3 are about nothing known; a repeated command knows it, and need not run them again.
TEST_F(BenchmarkTest, ARepeatedCommandNotesTheDocumentsOfOldSamples) {
  BenchmarkRequest request;
  request.tasks = {"needle:questions=2"};
  request.contexts = {1024};
  request.samples = 4;
  const std::vector<PlannedTask> tasks = plan_benchmark(request, vocabulary_, shape_, files_).value();
  Store out = store();
  ASSERT_TRUE(run_benchmark(tasks, specs({"full"}), out, hooks()).ok());
  ASSERT_TRUE(Database::open(store_path(root_), Access::kReadWrite).value().execute("UPDATE samples SET document = ''").ok());
  ASSERT_EQ(out.load().value().samples.at(3).document, "");
  EXPECT_EQ(run_benchmark(tasks, specs({"full"}), out, hooks()).value().samples_resumed, 4);
  const StoredResults noted = out.load().value();
  for (const SampleRecord& sample : noted.samples) EXPECT_NE(sample.document, "");
  EXPECT_EQ(calls_, 4);
}

TEST_F(BenchmarkTest, TheEstimateCountsASharedDocumentOnce) {
  const auto planned = [&](const char* task) {
    BenchmarkRequest request;
    request.tasks = {task};
    request.contexts = {2048};
    request.samples = 4;
    return plan_benchmark(request, vocabulary_, shape_, files_).value();
  };
  const std::vector<CacheSpec> caches = {parse_spec("full").value()};
  const RunRates prefill_only = {.prefill_tokens_per_s = 1, .decode_tokens_per_s = 1e12, .open_s = 0};
  const RunEstimate apart = estimate_run(planned("needle"), caches, shape_, prefill_only);
  const RunEstimate shared = estimate_run(planned("needle:questions=4"), caches, shape_, prefill_only);
  EXPECT_EQ(apart.shared_prompts, 0);
  EXPECT_EQ(apart.shared_bytes, 0U);
  EXPECT_EQ(shared.shared_prompts, 3);
  EXPECT_GT(shared.shared_bytes, 1500U * 2 * 3 * 8 * 4);
  EXPECT_LT(shared.hours, apart.hours / 2);
  EXPECT_GT(shared.hours, apart.hours / 4);
}

TEST_F(BenchmarkTest, BothPositionsOfTheQuestionAreTwoCellsOfTheSamePrompts) {
  BenchmarkRequest request;
  request.tasks = {"needle"};
  request.contexts = {1024};
  request.samples = 2;
  request.question_positions = {QuestionPosition::kSeen, QuestionPosition::kUnseen};
  const std::vector<PlannedTask> tasks = plan_benchmark(request, vocabulary_, shape_, files_).value();
  ASSERT_EQ(tasks.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const PreparedSample& seen = tasks[0].samples[i];
    const PreparedSample& unseen = tasks[1].samples[i];
    EXPECT_EQ(seen.record.key.position, QuestionPosition::kSeen);
    EXPECT_EQ(unseen.record.key.position, QuestionPosition::kUnseen);
    EXPECT_EQ(seen.record.prompt_hash, unseen.record.prompt_hash);
    EXPECT_EQ(seen.prompt(), unseen.prompt());
  }
  Store out = store();
  const auto caches = specs({"full"});
  EXPECT_EQ(run_benchmark(tasks, caches, out, hooks()).value().samples_run, 4);
  ASSERT_TRUE(write_predictions(files_, "out", out.load().value()).ok());
  EXPECT_TRUE(files_.exists("out/predictions/needle/1024/full.jsonl"));
  const std::string text = files_.read_file("out/predictions/needle/1024-unseen/full.jsonl").value();
  EXPECT_EQ(nlohmann::json::parse(text.substr(0, text.find('\n')))["question_position"], "unseen");
}

TEST_F(BenchmarkTest, ATaskWithoutQuestionsRunsWithTheQuestionSeenOnlyAndSaysSo) {
  const nlohmann::json record = {
      {"input", ""}, {"context", "Some text of a few words, enough for a prompt."}, {"answers", {"x"}}};
  put("my.jsonl", record.dump() + "\n");
  BenchmarkRequest request;
  request.tasks = {"my.jsonl"};
  request.metric = "contains";
  request.contexts = {1024};
  request.question_positions = {QuestionPosition::kSeen, QuestionPosition::kUnseen};
  const std::vector<PlannedTask> tasks = plan_benchmark(request, vocabulary_, shape_, files_).value();
  ASSERT_EQ(tasks.size(), 1U);
  EXPECT_EQ(tasks[0].position, QuestionPosition::kSeen);
  EXPECT_NE(tasks[0].note.find("only --question-position seen"), std::string::npos) << tasks[0].note;
  request.question_positions = {QuestionPosition::kUnseen};
  EXPECT_EQ(plan_benchmark(request, vocabulary_, shape_, files_).status().code(), Code::kUsage);
}

// A million prompts took minutes to prepare, and no signal ended that.
TEST_F(BenchmarkTest, PreparingPromptsCanBeInterrupted) {
  put("my.jsonl", R"({"input": "Who?", "context": "A wren.", "answers": ["wren"]})");
  std::atomic<bool> cancel = false;
  for (const char* task : {"needle", "fewshot", "my.jsonl"}) {
    BenchmarkRequest request;
    request.tasks = {task};
    if (std::string_view(task) == "my.jsonl") request.metric = "contains";
    request.contexts = {2048};
    request.samples = 2;
    request.cancel = &cancel;
    cancel = false;
    EXPECT_TRUE(plan_benchmark(request, vocabulary_, shape_, files_).ok()) << task;
    cancel = true;
    const Status status = plan_benchmark(request, vocabulary_, shape_, files_).status();
    EXPECT_EQ(status.code(), Code::kCancelled) << task;
    EXPECT_NE(status.message().find("interrupted"), std::string::npos) << status.message();
  }
}

TEST_F(BenchmarkTest, RefusesBeforeAnythingRuns) {
  BenchmarkRequest request;
  request.contexts = {1024};
  EXPECT_EQ(plan_benchmark(request, vocabulary_, shape_, files_).status().code(), Code::kUsage);
  request.tasks = {"needel"};
  EXPECT_EQ(plan_benchmark(request, vocabulary_, shape_, files_).status().code(), Code::kUsage);
  request.tasks = {"needle"};
  request.contexts = {8192};
  EXPECT_EQ(plan_benchmark(request, vocabulary_, shape_, files_).status().code(), Code::kExhausted);
  request.contexts = {64};
  EXPECT_EQ(plan_benchmark(request, vocabulary_, shape_, files_).status().code(), Code::kExhausted);
}

TEST_F(BenchmarkTest, PredictionFilesCanBeScoredAgain) {
  Store out = store();
  const auto caches = specs({"full", "kivi:bits=4/2"});
  ASSERT_TRUE(run_benchmark(plan(2), caches, out, hooks()).ok());
  ASSERT_TRUE(write_predictions(files_, "out", out.load().value()).ok());
  const std::string path = "out/predictions/multineedle:k=2/2048/kivi:bits=4-2.jsonl";
  ASSERT_TRUE(files_.exists(path));
  const std::string text = files_.read_file(path).value();
  const nlohmann::json first = nlohmann::json::parse(text.substr(0, text.find('\n')));
  for (const char* field :
       {"pred", "answers", "all_classes", "length", "id", "spec", "prompt_tokens", "completion_tokens", "prompt_hash"}) {
    EXPECT_TRUE(first.contains(field)) << field;
  }
  EXPECT_EQ(first["spec"], "kivi:bits=4/2");
  EXPECT_EQ(first["answers"].size(), 2U);
  const std::unique_ptr<Task> task = make_task("multineedle:k=2").value();
  const ScoreReport report = score_predictions(*task, text, path).value();
  EXPECT_EQ(report.n, 2);
  EXPECT_DOUBLE_EQ(report.score, 100);
  EXPECT_TRUE(report.skipped.empty());
}

// Two files of different folders never share a folder of predictions.
TEST(PredictionPaths, DifferentSpecsHaveDifferentNames) {
  EXPECT_EQ(path_name("longbench/multi_news"), "longbench-multi_news");
  EXPECT_EQ(path_name("a-b.jsonl"), "a-b.jsonl");
  EXPECT_EQ(path_name("kivi:bits=4/2"), "kivi:bits=4-2");
  EXPECT_NE(path_name("a/b.jsonl"), path_name("a-b.jsonl"));
  EXPECT_NE(path_name("a/b-c.jsonl:max_new=5"), path_name("a-b/c.jsonl:max_new=5"));
  EXPECT_TRUE(path_name("a/b.jsonl").starts_with("a-b.jsonl-"));
}

// A file name has at most 255 bytes, of which ".jsonl.tmp" takes ten; every key of a spec shows in it.
TEST(PredictionPaths, LongSpecsAreCutAndToldApart) {
  std::string keep = "kivi:keep=0";
  for (int layer = 2; layer < 200; layer += 2) keep += fmt::format(".{}", layer);
  const std::string one = parse_spec(keep).value().canonical;
  const std::string other = parse_spec(keep + ".201").value().canonical;
  ASSERT_GT(one.size(), 255U);
  EXPECT_LE(file_name(one).size(), 245U);
  EXPECT_NE(file_name(one), file_name(other));
  EXPECT_TRUE(file_name(one).starts_with("kivi:bits=4,group=32,residual=128,keep=0.2.4"));
  EXPECT_EQ(file_name("kivi:bits=4/2"), "kivi:bits=4-2");
}

TEST_F(BenchmarkTest, RefusesTaskNamesThatAreTooLongForAFolder) {
  BenchmarkRequest request;
  request.tasks = {std::string(250, 'd') + "/my.jsonl"};
  request.metric = "contains";
  request.contexts = {1024};
  const Status status = plan_benchmark(request, vocabulary_, shape_, files_).status();
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_NE(status.message().find("268 bytes"), std::string::npos) << status.message();
}

TEST(F16Bytes, CountWindowsOnly) {
  ModelShape shape;
  shape.layers = {{.heads = 4, .kv_heads = 2, .head_dim = 8, .window = 0},
                  {.heads = 4, .kv_heads = 2, .head_dim = 8, .window = 10}};
  // Per token and layer: keys and values of 2 heads x 8 channels x 2 bytes = 64.
  EXPECT_EQ(f16_bytes(shape, 25), 64 * 25 + 64 * 10);
}

}  // namespace
}  // namespace kvartet
