// Generation: greedy and sampled, in batches, to its end or to an interruption.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "core/utf8.h"
#include "engine/tiny_engine_fixture.h"

namespace kvartet {
namespace {

using std::string;
using GenerateTest = EngineTest;

TEST_F(GenerateTest, GreedyEqualsArgmaxStepByStep) {
  Sequence sequence = start(40);
  Sequence stepped = sequence.fork();
  const Completion completion = generate(sequence, {.max_tokens = 20});
  for (const Token token : completion.tokens) {
    EXPECT_EQ(token, argmax(stepped.logits));
    Sequence* list[] = {&stepped};
    const Token one[] = {token};
    ASSERT_TRUE(engine_->decode(list, one).ok());
  }
  const bool ended = completion.finish_reason == FinishReason::kStop;
  EXPECT_EQ(ended, completion.tokens.size() < 20U);
  EXPECT_TRUE(!ended || engine_->vocabulary().is_end(argmax(stepped.logits)));
  EXPECT_EQ(completion.token_s.size(), completion.tokens.size());
  EXPECT_TRUE(std::is_sorted(completion.token_s.begin(), completion.token_s.end()));
}

TEST_F(GenerateTest, EachSequenceOfABatchGoesItsOwnWay) {
  std::vector<Sequence> sequences;
  std::vector<Completion> alone;
  for (int i = 0; i < 4; ++i) {
    sequences.push_back(start(10 + 9 * i, i % 2 == 0 ? "full" : "q8_0", static_cast<std::uint64_t>(i)));
    Sequence fork = sequences.back().fork();
    alone.push_back(generate(fork, {.max_tokens = 15, .stop = {"e"}}));
  }
  std::vector<Sequence*> list;
  for (Sequence& sequence : sequences) list.push_back(&sequence);
  std::vector<string> streamed(4);
  const auto together = generate(list, {.max_tokens = 15, .stop = {"e"}}, [&](int i, std::string_view piece) {
    EXPECT_TRUE(is_valid_utf8(piece));
    streamed[static_cast<std::size_t>(i)] += piece;
  });
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
    EXPECT_EQ(together[i].text, alone[i].text) << i;
    EXPECT_EQ(together[i].finish_reason, alone[i].finish_reason) << i;
    EXPECT_EQ(streamed[i], together[i].text) << "streamed and not, the same";
  }
}

TEST_F(GenerateTest, C9StopStringsCutTheTextWhereverTheyStand) {  // user-needs C9, with a model
  const Sequence sequence = start(40);
  const SamplingOptions sampling{.temperature = 3, .seed = 5};  // a tiny random model repeats itself when greedy
  Sequence free = sequence.fork();
  const Completion whole = generate(free, {.max_tokens = 24, .sampling = sampling});
  ASSERT_GT(whole.text.size(), 8U);
  for (std::size_t begin = 0; begin < whole.text.size(); ++begin) {
    for (const std::size_t length : {1U, 3U, 5U}) {
      const string stop = whole.text.substr(begin, length);
      if (stop.size() < length || !is_valid_utf8(stop)) continue;
      Sequence fork = sequence.fork();
      const Completion cut = generate(fork, {.max_tokens = 24, .sampling = sampling, .stop = {stop}});
      EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop))) << begin << " " << length;
      EXPECT_EQ(cut.finish_reason, FinishReason::kStop);
      EXPECT_LE(cut.tokens.size(), whole.tokens.size());
    }
  }
}

TEST_F(GenerateTest, C5AndC6LimitsOfLength) {
  Sequence sequence = start(250);
  const Completion none = generate(sequence, {.max_tokens = 0});
  EXPECT_EQ(none.text, "");
  EXPECT_TRUE(none.tokens.empty());
  EXPECT_EQ(none.finish_reason, FinishReason::kLength);

  // Prompt and answer together fill the context of 256 and no more.
  const SamplingOptions sampling{.temperature = 3, .seed = 5};
  const Completion six = generate(sequence, {.max_tokens = 100, .sampling = sampling});
  EXPECT_EQ(six.tokens.size(), 6U);
  EXPECT_EQ(six.finish_reason, FinishReason::kLength);
  Sequence* list[] = {&sequence};
  EXPECT_EQ(engine_->generate(list, {.max_tokens = 1}).status().code(), Code::kExhausted);
  const Token one[] = {5};
  EXPECT_EQ(engine_->decode(list, one).code(), Code::kExhausted);
  EXPECT_EQ(engine_->extend(sequence, one).code(), Code::kExhausted);
}

TEST_F(GenerateTest, EndTokensCanBeIgnored) {  // hot enough that end tokens come: 3 of 259 tokens end a text
  const Sequence sequence = start(20);
  int stopped = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    GenerateOptions options{.max_tokens = 200, .sampling = {.temperature = 50, .seed = seed}};
    Sequence free = sequence.fork();
    stopped += generate(free, options).finish_reason == FinishReason::kStop ? 1 : 0;
    options.ignore_end = true;
    Sequence fixed = sequence.fork();
    EXPECT_EQ(generate(fixed, options).tokens.size(), 200U);
  }
  EXPECT_GT(stopped, 0);
}

TEST_F(GenerateTest, SenselessOptionsAreRefused) {
  Sequence sequence = start(10);
  Sequence* list[] = {&sequence};
  const GenerateOptions bad[] = {
      {.max_tokens = -1}, {.sampling = {.temperature = -1}}, {.sampling = {.top_p = 0}}, {.stop = {""}}, {.stop = {"\xFF"}}};
  for (const GenerateOptions& options : bad) EXPECT_EQ(engine_->generate(list, options).status().code(), Code::kUsage);
  EXPECT_TRUE(engine_->generate({}, {})->empty());
}

TEST_F(GenerateTest, SamplingRepeatsWithItsSeed) {
  const Sequence sequence = start(30);
  const auto run = [&](std::uint64_t seed) {
    Sequence fork = sequence.fork();
    return generate(fork, {.max_tokens = 16, .sampling = {.temperature = 2, .top_p = 0.95, .seed = seed}}).tokens;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST_F(GenerateTest, CancelledPrefillSaysSo) {
  std::atomic<bool> cancel = false;
  const auto engine = open_tiny({.cancel = &cancel});
  int steps = 0;
  const auto status = engine
                          ->prefill(random_tokens(50, 1), specs_of({"full"}),
                                    [&](double) {
                                      ++steps;
                                      cancel = true;
                                    })
                          .status();
  EXPECT_EQ(status.code(), Code::kCancelled);
  EXPECT_EQ(steps, 1) << "it ends after the step that was running";
  cancel = false;
  EXPECT_TRUE(engine->prefill(random_tokens(50, 1), specs_of({"full"})).ok()) << "the engine goes on after an interruption";
}

TEST_F(GenerateTest, CancelledGenerationKeepsItsText) {
  std::atomic<bool> cancel = false;
  const auto engine = open_tiny({.cancel = &cancel});
  auto sequences = engine->prefill(random_tokens(20, 1), specs_of({"f32"}));
  ASSERT_TRUE(sequences.ok());
  Sequence fork = (*sequences)[0].fork();
  Sequence* list[] = {&(*sequences)[0]};
  string streamed;
  int pieces = 0;
  const auto done = engine->generate(list, {.max_tokens = 50, .sampling = {.temperature = 3}}, [&](int, std::string_view piece) {
    streamed += piece;
    if (++pieces == 5) cancel = true;
  });
  ASSERT_TRUE(done.ok());
  EXPECT_EQ((*done)[0].finish_reason, FinishReason::kCancelled);
  EXPECT_EQ((*done)[0].text, streamed);
  EXPECT_LT((*done)[0].tokens.size(), 50U);
  cancel = false;
  Sequence* other[] = {&fork};
  const auto whole = engine->generate(other, {.max_tokens = 50, .sampling = {.temperature = 3}});
  ASSERT_TRUE(whole.ok());
  EXPECT_TRUE(std::equal((*done)[0].tokens.begin(), (*done)[0].tokens.end(), (*whole)[0].tokens.begin()))
      << "a prefix of the undisturbed run";
}

}  // namespace
}  // namespace kvartet
