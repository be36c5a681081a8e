#include "bench/runner/solo_child.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/runner/measure_sample.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

class SoloChildTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvartet_solo_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    const Status written = write_tiny_model(model(), {.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .context = 768});
    ASSERT_TRUE(written.ok()) << written.message();
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string model() const { return root_ + "/tiny.gguf"; }
  SoloSettings settings() const {
    SoloSettings s;
    s.model_path = model();
    return s;
  }
  std::unique_ptr<Engine> open() const {
    EngineOptions options;
    options.model_path = model();
    return Engine::open(options).value();
  }
  static PreparedSample sample(const Engine& engine) {
    Sample s;
    s.id = "s0";
    s.before = "Read this. ";
    for (int i = 0; i < 150; ++i) s.document.append("w").append(std::to_string(i % 7)).append(" ");
    s.question = "Which word?";
    s.answers = {"w1"};
    s.gold = "The word w1.";
    s.max_new_tokens = 20;
    return prepare_sample(engine.vocabulary(), s, {"my", 768, "s0"}, 0).value();
  }
  // A program in place of ours.
  std::string script(const std::string& body) const {
    const std::string path = root_ + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), 0755);
    return path;
  }
  SoloRun alone(const std::string& program, const PreparedSample& s, double limit_s = 60) const {
    return run_alone({program, settings(), nullptr}, s, parse_spec("full").value(), limit_s).value();
  }

  std::string root_;
};

SoloOrder order_of(const SoloSettings& settings, const PreparedSample& s, const std::string& spec, QuestionPosition position) {
  SoloOrder order;
  order.settings = settings;
  order.spec = spec;
  order.position = position;
  order.document = s.document;
  order.question = s.question;
  order.max_new_tokens = s.sample.max_new_tokens;
  order.stop_at_newline = s.sample.stop_at_newline;
  order.parent_process = 17;
  return order;
}

TEST_F(SoloChildTest, AnOrderComesOutAsItWentIn) {
  SoloOrder order = order_of(settings(), {}, "kivi:bits=4/2", QuestionPosition::kUnseen);
  order.document = {1, 2, 300000};
  order.question = {7};
  order.settings.threads = 3;
  order.settings.fast_tier_bytes = Arena::kNoCap;
  order.settings.tier_directory = "/a \"b\"";
  order.stop_at_newline = true;
  const SoloOrder read = read_solo_order(solo_order_text(order)).value();
  EXPECT_EQ(read.spec, order.spec);
  EXPECT_EQ(read.position, order.position);
  EXPECT_EQ(read.document, order.document);
  EXPECT_EQ(read.question, order.question);
  EXPECT_EQ(read.settings.model_path, model());
  EXPECT_EQ(read.settings.threads, 3);
  EXPECT_EQ(read.settings.fast_tier_bytes, Arena::kNoCap);
  EXPECT_EQ(read.settings.tier_directory, "/a \"b\"");
  EXPECT_TRUE(read.stop_at_newline);
  EXPECT_EQ(read.parent_process, 17);
  for (const char* none : {"", "hello", "[]", "{}", "{\"model_path\": 1}"})
    EXPECT_EQ(read_solo_order(none).status().code(), Code::kBadInput) << none;
}

// DESIGN 6: what a cache writes alone is what it writes in company, also for one that evicts and with the question unseen.
TEST_F(SoloChildTest, TheTextIsThatOfTheSharedRun) {
  const std::unique_ptr<Engine> engine = open();
  const PreparedSample s = sample(*engine);
  std::vector<CacheSpec> caches;
  for (const char* text : {"full", "q8_0", "kivi:bits=2,residual=32", "snapkv:budget=0.25", "streamingllm:window=64"})
    caches.push_back(parse_spec(text).value());
  for (const QuestionPosition position : {QuestionPosition::kSeen, QuestionPosition::kUnseen}) {
    const std::vector<Outcome> together = measure_sample(*engine, s, caches, position).value();
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const SoloRun run = measure_alone(order_of(settings(), s, caches[i].canonical, position), nullptr).value();
      ASSERT_FALSE(run.failed()) << run.error;
      ASSERT_FALSE(together[i].failed()) << together[i].error;
      EXPECT_EQ(run.text, together[i].prediction) << caches[i].canonical;
      EXPECT_EQ(run.completion_tokens, together[i].completion_tokens);
      EXPECT_EQ(run.finish_reason, together[i].finish_reason);
      EXPECT_GT(run.ttft_s, 0);
      EXPECT_GT(run.peak_rss_bytes, run.weight_bytes);
      const nlohmann::json gaps = nlohmann::json::parse(run.token_gaps_json);
      ASSERT_EQ(gaps.size(), static_cast<std::size_t>(run.completion_tokens - 1));
      double seconds = run.ttft_s;
      for (const double gap : gaps) seconds += gap / 1000;
      EXPECT_NEAR(run.end_to_end_tokens_per_s, run.completion_tokens / seconds, 1e-9);
      if (run.completion_tokens > 1) {
        EXPECT_GT(run.decode_tokens_per_s, run.end_to_end_tokens_per_s);
      }
    }
  }
}

TEST_F(SoloChildTest, WhatItCannotTakeIsASentence) {
  const std::unique_ptr<Engine> engine = open();
  const PreparedSample s = sample(*engine);
  SoloSettings small = settings();
  small.fast_tier_bytes = 100'000;
  const SoloRun run = measure_alone(order_of(small, s, "full", QuestionPosition::kSeen), nullptr).value();
  EXPECT_GT(run.error.size(), 20U);
  SoloSettings nowhere = settings();
  nowhere.model_path = root_ + "/none.gguf";
  EXPECT_FALSE(measure_alone(order_of(nowhere, s, "full", QuestionPosition::kSeen), nullptr).ok());
}

TEST_F(SoloChildTest, AnAnswerIsTakenWhenItIsAboutThePromptAskedFor) {
  const std::unique_ptr<Engine> engine = open();
  const PreparedSample s = sample(*engine);
  const SoloOrder order = order_of(settings(), s, "full", QuestionPosition::kSeen);
  SoloRun told;
  told.text = "é \"quoted\"";
  told.completion_tokens = 3;
  told.ttft_s = 0.5;
  told.token_gaps_json = "[1.25,2.5]";
  told.peak_rss_bytes = 7;
  std::ofstream(root_ + "/answer") << solo_answer_text(order, told);
  const SoloRun run = alone(script("cat > /dev/null; cat " + root_ + "/answer"), s);
  ASSERT_FALSE(run.failed()) << run.error;
  EXPECT_EQ(run.text, told.text);
  EXPECT_EQ(run.token_gaps_json, "[1.25,2.5]");
  EXPECT_EQ(run.key, s.record.key);
  EXPECT_EQ(run.spec, "full");

  SoloRun odd = told;
  odd.token_gaps_json = "[-1]";
  std::ofstream(root_ + "/answer") << solo_answer_text(order, odd);
  EXPECT_NE(alone(script("cat " + root_ + "/answer"), s).error.find("its figures cannot be"), std::string::npos);

  SoloOrder other = order;
  other.document.back() += 1;
  std::ofstream(root_ + "/answer") << solo_answer_text(other, told);
  const SoloRun wrong = alone(script("cat " + root_ + "/answer"), s);
  EXPECT_NE(wrong.error.find("another prompt"), std::string::npos) << wrong.error;
}

TEST_F(SoloChildTest, DeadSlowAndMadProcessesAreOneSentenceEach) {
  const std::unique_ptr<Engine> engine = open();
  const PreparedSample s = sample(*engine);
  const auto error = [&](const std::string& body, double limit_s = 60) { return alone(script(body), s, limit_s).error; };
  EXPECT_EQ(error("kill -KILL $$"), "the process of its own was ended by signal 9 (Killed)");
  EXPECT_EQ(error("echo 'kvartet: no memory' >&2; exit 4"), "the process of its own ended with exit code 4: kvartet: no memory");
  EXPECT_EQ(error("exec sleep 1000", 0.2), "the process of its own took longer than 0 s and was stopped");
  for (const char* mad : {"echo hello", "true", "echo '{}'", "echo '{\"error\": \"\", \"prompt_hash\": 5}'"}) {
    EXPECT_NE(error(mad).find("not to be believed"), std::string::npos) << error(mad);
  }
  EXPECT_EQ(run_alone({root_ + "/nowhere", settings(), nullptr}, s, parse_spec("full").value(), 1).status().code(), Code::kIo);
}

}  // namespace
}  // namespace kvartet
