#include "bench/runner/measure_sample.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>

#include "bench/fidelity.h"
#include "bench/runner/second_question.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

// The engine for real, on a tiny random model: what is measured, not how well the model answers.
class MeasureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() / fmt::format("kvartet_measure_{}.gguf", getpid())).string();
    const Status written = write_tiny_model(path_, {.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .context = 768});
    ASSERT_TRUE(written.ok()) << written.message();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::unique_ptr<Engine> open(EngineOptions options = {}) {
    options.model_path = path_;
    return Engine::open(options).value();
  }
  static std::vector<CacheSpec> specs(std::initializer_list<const char*> texts) {
    std::vector<CacheSpec> out;
    for (const char* text : texts) out.push_back(parse_spec(text).value());
    return out;
  }
  static PreparedSample sample(const Engine& engine, int words = 100) {
    Sample s;
    s.id = "s0";
    s.before = "Read this. ";
    for (int i = 0; i < words; ++i) s.document.append("w").append(std::to_string(i % 7)).append(" ");
    s.question = "Which word?";
    s.answers = {"w1"};
    s.gold = "The word w1.";
    s.max_new_tokens = 8;
    return prepare_sample(engine.vocabulary(), s, {"my", 768, "s0"}, 0).value();
  }

  std::string path_;
};

TEST_F(MeasureTest, FillsEveryFigureOfEveryCache) {
  const std::unique_ptr<Engine> engine = open();
  const PreparedSample s = sample(*engine);
  const auto caches = specs({"full", "q8_0", "streamingllm:window=64"});
  const std::vector<Outcome> out = measure_sample(*engine, s, caches, QuestionPosition::kSeen).value();
  ASSERT_EQ(out.size(), 3U);
  const std::int64_t f16 = f16_bytes(engine->shape(), s.record.prompt_tokens);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Outcome& o = out[i];
    EXPECT_FALSE(o.failed()) << o.error;
    EXPECT_EQ(o.spec, caches[i].canonical);
    EXPECT_TRUE(o.shared);
    EXPECT_LT(*o.gold_log_likelihood, 0);
    EXPECT_GE(o.allocated_bytes, o.live_bytes);
    EXPECT_EQ(o.fast_bytes, o.allocated_bytes);  // nothing is offloaded
    EXPECT_EQ(o.f16_bytes, f16);
    EXPECT_GE(o.end_f16_bytes, f16);
    EXPECT_LE(o.completion_tokens, 8);
    EXPECT_GE(o.ttft_s, o.prefill_s + o.compress_s);
    EXPECT_TRUE(o.finish_reason == "stop" || o.finish_reason == "length");
  }
  EXPECT_EQ(out[0].live_bytes, f16);
  EXPECT_FALSE(out[0].acted);
  EXPECT_DOUBLE_EQ(out[0].rows_kept, s.record.prompt_tokens);
  EXPECT_LT(out[1].live_bytes, f16);
  EXPECT_TRUE(out[2].acted);
  EXPECT_LT(out[2].rows_kept, 70);
  EXPECT_NE(out[2].gold_log_likelihood, out[0].gold_log_likelihood);
}

// One prefill for all: sharing changes times, never figures.
TEST_F(MeasureTest, ACacheAloneGivesTheSameAsInCompany) {
  const std::unique_ptr<Engine> engine = open();
  const PreparedSample s = sample(*engine);
  const auto caches = specs({"full", "kivi:bits=4", "snapkv"});
  const std::vector<Outcome> together = measure_sample(*engine, s, caches, QuestionPosition::kSeen).value();
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const std::vector<Outcome> alone = measure_sample(*engine, s, {&caches[i], 1}, QuestionPosition::kSeen).value();
    ASSERT_FALSE(alone[0].failed()) << alone[0].error;
    EXPECT_FALSE(alone[0].shared);
    EXPECT_NEAR(*alone[0].gold_log_likelihood, *together[i].gold_log_likelihood, 1e-6);
    EXPECT_EQ(alone[0].prediction, together[i].prediction);
    EXPECT_EQ(alone[0].live_bytes, together[i].live_bytes);
  }
}

// docs/decisions/0012: questions about one document share its rows, in both positions; figures are those of prompts alone.
TEST_F(MeasureTest, QuestionsAboutOneDocumentGiveTheSameAsAlone) {
  const std::unique_ptr<Engine> sharing = open();
  const std::unique_ptr<Engine> apart = open();
  std::vector<PreparedSample> samples;
  for (const char* question : {"Which word?", "And which is the last word of all?"}) {
    Sample s;
    s.id = question;
    for (int i = 0; i < 100; ++i) s.document.append("w").append(std::to_string(i % 7)).append(" ");
    s.question = question;
    s.answers = {"w1"};
    s.gold = "The word w1.";
    s.max_new_tokens = 8;
    samples.push_back(prepare_sample(sharing->vocabulary(), s, {"my", 768, s.id}, 0).value());
  }
  std::vector<PreparedSample> alone = samples;
  share_documents(samples, 2);
  ASSERT_GT(samples[0].shared_tokens, 200);
  const auto caches = specs({"full", "snapkv:budget=64", "h2o:budget=64", "kivi:bits=2"});
  int times_of_others = 0;
  for (const QuestionPosition position : {QuestionPosition::kSeen, QuestionPosition::kUnseen}) {
    for (std::size_t q = 0; q < 2; ++q) {
      const std::vector<Outcome> got = measure_sample(*sharing, samples[q], caches, position).value();
      const std::vector<Outcome> want = measure_sample(*apart, alone[q], caches, position).value();
      for (std::size_t i = 0; i < caches.size(); ++i) {
        EXPECT_EQ(got[i].gold_log_likelihood, want[i].gold_log_likelihood) << got[i].spec;
        EXPECT_EQ(got[i].prediction, want[i].prediction) << got[i].spec;
        EXPECT_EQ(got[i].allocated_bytes, want[i].allocated_bytes) << got[i].spec;
        EXPECT_EQ(got[i].rows_kept, want[i].rows_kept) << got[i].spec;
      }
      const std::vector<Outcome> single = measure_sample(*sharing, samples[q], {caches.data(), 1}, position).value();
      times_of_others += single[0].shared ? 1 : 0;
    }
  }
  EXPECT_EQ(times_of_others, 4);  // each had its rows by then
  EXPECT_EQ(sharing->shared_prefix_tally().taken, 7);
  EXPECT_FALSE(measure_sample(*apart, alone[0], {caches.data(), 1}, QuestionPosition::kSeen).value()[0].shared);
}

TEST_F(MeasureTest, AnUnseenQuestionComesAfterSealing) {
  const std::unique_ptr<Engine> engine = open();
  const PreparedSample s = sample(*engine);
  const auto caches = specs({"full", "snapkv"});
  const std::vector<Outcome> seen = measure_sample(*engine, s, caches, QuestionPosition::kSeen).value();
  const std::vector<Outcome> unseen = measure_sample(*engine, s, caches, QuestionPosition::kUnseen).value();
  EXPECT_NEAR(*unseen[0].gold_log_likelihood, *seen[0].gold_log_likelihood, 1e-2);  // f16 rows instead of exact ones
  EXPECT_GT(unseen[1].rows_kept, seen[1].rows_kept);                                // the question's rows are all kept
}

// Three questions about one text, the last two also asked second.
class SecondQuestionTest : public MeasureTest {
 protected:
  static std::vector<PreparedSample> questions(const Engine& engine) {
    std::vector<PreparedSample> samples;
    for (const char* question : {"Which word comes first?", "And which is the last word of all?", "Name w5, w3 and w2."}) {
      Sample s;
      s.id = question;
      for (int i = 0; i < 100; ++i) s.document.append("w").append(std::to_string(i * i % 7)).append(" ");
      s.question = std::string("\n\n") + question;
      s.answers = {"w1"};
      s.gold = std::string("The word w1 is meant by ") + question;
      s.max_new_tokens = 8;
      samples.push_back(prepare_sample(engine.vocabulary(), s, {"my", 768, s.id}, 0).value());
    }
    share_documents(samples, 3);
    return samples;
  }
  static std::vector<std::vector<std::int32_t>> kept(const Sequence& sequence, const ModelShape& shape) {
    std::vector<std::vector<std::int32_t>> rows;
    for (int layer = 0; layer < shape.layer_count(); ++layer) {
      for (int head = 0; head < shape.layers[static_cast<std::size_t>(layer)].kv_heads; ++head)
        rows.push_back(sequence.cache.positions(layer, head));
    }
    return rows;
  }
};

// A cache that drops nothing answers as if the whole conversation had been one prompt.
TEST_F(SecondQuestionTest, FullAnswersAsOnTheWholeTextAtOnce) {
  const std::unique_ptr<Engine> engine = open();
  const auto caches = specs({"full", "f32"});
  for (const PreparedSample& second : ask_second(questions(*engine)).samples) {
    const std::vector<Outcome> asked = measure_sample(*engine, second, caches, QuestionPosition::kSecond).value();
    const std::vector<Outcome> at_once = measure_sample(*engine, second, caches, QuestionPosition::kSeen).value();
    for (std::size_t i = 0; i < caches.size(); ++i) {
      ASSERT_FALSE(asked[i].failed()) << asked[i].error;
      EXPECT_EQ(asked[i].key.position, QuestionPosition::kSecond);
      EXPECT_NEAR(*asked[i].gold_log_likelihood, *at_once[i].gold_log_likelihood, i == 0 ? 1e-2 : 1e-4);
      EXPECT_EQ(asked[i].rows_kept, at_once[i].rows_kept);
      EXPECT_EQ(asked[i].live_bytes, at_once[i].live_bytes);
    }
    EXPECT_EQ(asked[1].prediction, at_once[1].prediction);
  }
}

// compression.md 5: what SnapKV keeps of the document follows from the window at the prompt's end, which is the first question's.
TEST_F(SecondQuestionTest, SnapKvKeepsTheRowsThatTheFirstQuestionChose) {
  const std::unique_ptr<Engine> engine = open();
  const std::vector<PreparedSample> alone = questions(*engine);
  const PreparedSample second = ask_second(alone).samples[1];
  const auto caches = specs({"snapkv:budget=64,window=16"});
  const auto rows_of = [&](const std::vector<Token>& prompt) {
    return kept(engine->prefill_shared(prompt, second.shared_tokens, caches).value()[0], engine->shape());
  };
  const auto chosen = rows_of(alone[0].prompt());
  std::vector<Sequence> conversation = engine->prefill_shared(second.document, second.shared_tokens, caches).value();
  EXPECT_EQ(kept(conversation[0], engine->shape()), chosen);
  ASSERT_TRUE(engine->extend(conversation[0], second.question).ok());
  // Everything behind the seal stays, and brings nothing back.
  const auto afterwards = kept(conversation[0], engine->shape());
  const auto seen = rows_of(alone[1].prompt());
  int other_rows = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    std::vector<std::int32_t> expected = chosen[i];
    for (std::size_t p = second.document.size(); p < second.prompt().size(); ++p)
      expected.push_back(static_cast<std::int32_t>(p));
    EXPECT_EQ(afterwards[i], expected);
    std::vector<std::int32_t> mine, own;
    const auto document_end = static_cast<std::int32_t>(alone[0].document.size());
    std::ranges::copy_if(chosen[i], std::back_inserter(mine), [&](std::int32_t p) { return p < document_end; });
    std::ranges::copy_if(seen[i], std::back_inserter(own), [&](std::int32_t p) { return p < document_end; });
    other_rows += mine == own ? 0 : 1;
  }
  EXPECT_GT(other_rows, 0) << "question 2 would have chosen others";
  const Outcome asked = measure_sample(*engine, second, caches, QuestionPosition::kSecond).value()[0];
  EXPECT_EQ(asked.rows_kept, static_cast<double>(64 + second.question.size()));
}

// The rows that the positions share are the document's, and sharing them changes no figure.
TEST_F(SecondQuestionTest, SharesTheRowsOfTheDocumentWithTheOtherPositions) {
  const std::unique_ptr<Engine> sharing = open();
  const std::unique_ptr<Engine> apart = open();
  const std::vector<PreparedSample> samples = questions(*sharing);
  const std::vector<PreparedSample> second = ask_second(samples).samples;
  ASSERT_GT(second[0].shared_tokens, 200);
  const auto caches = specs({"full", "snapkv:budget=64", "h2o:budget=64", "cam:target=64", "kivi:bits=2"});
  for (std::size_t q = 0; q < samples.size(); ++q) {
    for (const QuestionPosition position : kQuestionPositions) {
      const PreparedSample& s = position == QuestionPosition::kSecond ? second[q] : samples[q];
      PreparedSample whole = s;
      whole.shared_tokens = 0;
      const std::vector<Outcome> got = measure_sample(*sharing, s, caches, position).value();
      const std::vector<Outcome> want = measure_sample(*apart, whole, caches, position).value();
      for (std::size_t i = 0; i < caches.size(); ++i) {
        EXPECT_FALSE(want[i].failed()) << want[i].error;
        EXPECT_EQ(got[i].gold_log_likelihood, want[i].gold_log_likelihood) << got[i].spec;
        EXPECT_EQ(got[i].prediction, want[i].prediction) << got[i].spec;
        EXPECT_EQ(got[i].rows_kept, want[i].rows_kept) << got[i].spec;
      }
    }
  }
  EXPECT_EQ(sharing->shared_prefix_tally().taken, 8);
}

TEST_F(MeasureTest, ACacheThatDoesNotFitFailsAloneWithASentence) {
  const std::unique_ptr<Engine> reference = open();
  const PreparedSample s = sample(*reference, 220);
  const std::int64_t full = f16_bytes(reference->shape(), s.record.prompt_tokens);
  const std::unique_ptr<Engine> engine = open({.fast_tier_bytes = static_cast<std::size_t>(full / 2)});
  const auto caches = specs({"full", "streamingllm:window=64"});
  const std::vector<Outcome> out = measure_sample(*engine, s, caches, QuestionPosition::kSeen).value();
  ASSERT_EQ(out.size(), 2U);
  EXPECT_TRUE(out[0].failed());
  EXPECT_GT(out[0].error.size(), 20U);
  EXPECT_FALSE(out[1].failed()) << out[1].error;
  EXPECT_FALSE(out[1].shared);
}

// A capped cache answers more shortly and is otherwise measured as the others are.
TEST_F(MeasureTest, CapsCutTheAnswersOfTheirCacheAlone) {
  const std::unique_ptr<Engine> engine = open();
  PreparedSample s = sample(*engine, 220);
  s.sample.max_new_tokens = 12;
  const auto caches = specs({"full", "q8_0", "q4_0"});
  const std::vector<Outcome> free = measure_sample(*engine, s, caches, QuestionPosition::kSeen).value();
  const std::vector<Outcome> cut =
      measure_capped_sample(*engine, s, caches, QuestionPosition::kSeen, {{"q8_0", 3}, {"q4_0", 100}}).value();
  ASSERT_EQ(cut.size(), 3U);
  EXPECT_LE(cut[1].completion_tokens, 3);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(cut[i].spec, caches[i].canonical);
    EXPECT_EQ(cut[i].gold_log_likelihood, free[i].gold_log_likelihood);
    EXPECT_EQ(cut[i].allocated_bytes, free[i].allocated_bytes);
    if (i == 1) continue;
    EXPECT_EQ(cut[i].prediction, free[i].prediction);
  }
}

TEST_F(MeasureTest, AnInterruptionIsNoOutcome) {
  std::atomic<bool> cancel = false;
  const std::unique_ptr<Engine> engine = open({.cancel = &cancel});
  const PreparedSample s = sample(*engine);
  const auto caches = specs({"full", "q8_0"});
  cancel = true;
  EXPECT_EQ(measure_sample(*engine, s, caches, QuestionPosition::kSeen).status().code(), Code::kCancelled);
}

// DESIGN 6: the reference is never a row; q8_0 is closer to it than 2 bits are.
TEST_F(MeasureTest, FidelityOrdersTheCaches) {
  const std::unique_ptr<Engine> engine = open();
  const PreparedSample s = sample(*engine, 220);
  const std::vector<Token> text = s.prompt();
  const auto caches = specs({"full", "f32", "q8_0", "kivi:bits=2"});
  const FidelityReport r = measure_fidelity(*engine, text, {.context = 600, .tokens = 40}, caches).value();
  EXPECT_EQ(r.reference_spec, "full");
  EXPECT_EQ(r.prefix_tokens, 559);
  ASSERT_EQ(r.rows.size(), 3U);
  EXPECT_EQ(r.rows[0].spec, "f32");
  EXPECT_EQ(r.rows[0].tokens, 40);
  EXPECT_LT(r.rows[0].kl_mean, 1e-5);
  EXPECT_LT(r.rows[1].kl_mean, r.rows[2].kl_mean);
  EXPECT_GE(r.rows[1].kl_max, r.rows[1].kl_mean);
  EXPECT_GT(r.reference_perplexity, 1);

  EXPECT_EQ(measure_fidelity(*engine, text, {.context = 767, .tokens = 40}, caches).status().code(), Code::kBadInput);
  EXPECT_EQ(measure_fidelity(*engine, text, {.context = 900, .tokens = 40}, caches).status().code(), Code::kExhausted);
  EXPECT_EQ(measure_fidelity(*engine, text, {.context = 40, .tokens = 40}, caches).status().code(), Code::kUsage);
}

}  // namespace
}  // namespace kvartet
