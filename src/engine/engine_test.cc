#include "engine/engine.h"

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"
#include "engine/log_softmax.h"
#include "engine/prompt.h"
#include "engine/tiny_engine_fixture.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

using std::string;

// --- prefill

TEST_F(EngineTest, OnePrefillFeedsManyCaches) {
  const std::vector<Token> prompt = random_tokens(100, 1);
  const auto specs = specs_of({"f32", "full", "q8_0", "streamingllm:sinks=2,window=16"});
  double last = 0;
  const auto sequences = engine_->prefill(prompt, specs, [&](double share) {
    EXPECT_GE(share, last);
    last = share;
  });
  ASSERT_TRUE(sequences.ok()) << sequences.status().message();
  EXPECT_EQ(last, 1.0);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Sequence alone = start(prompt, specs[i].canonical);
    EXPECT_EQ((*sequences)[i].logits, alone.logits) << "the prompt itself is exact for every cache";
    EXPECT_EQ((*sequences)[i].cache.bytes(), alone.cache.bytes()) << specs[i].canonical;
    EXPECT_EQ((*sequences)[i].cache.next_position(), 100);
    EXPECT_GE((*sequences)[i].compress_s, 0);
    EXPECT_GT((*sequences)[i].prefill_s, 0);
  }
}

// What caches choose by is computed once for all of them, and must not be taken off the prefill once for each.
TEST_F(EngineTest, ManyChoosingCachesLeaveThePrefillItsTime) {
  std::vector<std::string> texts;
  for (int budget = 16; budget < 80; ++budget) texts.push_back("snapkv:window=8,budget=" + std::to_string(budget));
  const Result<std::vector<Sequence>> sequences = engine_->prefill(random_tokens(200, 1), specs_of(texts));
  ASSERT_TRUE(sequences.ok()) << sequences.status().message();
  for (const Sequence& sequence : *sequences) EXPECT_GT(sequence.prefill_s, 0) << sequence.cache.spec().canonical;
}

TEST_F(EngineTest, BadRequestsAreRefusedBeforeAnyWork) {
  const auto full = specs_of({"full"});
  EXPECT_EQ(engine_->prefill({}, full).status().code(), Code::kBadInput);
  EXPECT_EQ(engine_->prefill(random_tokens(10, 1), {}).status().code(), Code::kUsage);
  EXPECT_EQ(engine_->prefill(random_tokens(257, 1), full).status().code(), Code::kExhausted);
  EXPECT_TRUE(engine_->prefill(random_tokens(256, 1), full).ok());
  for (const Token bad : {-1, 259}) {
    const std::vector<Token> prompt = {1, bad, 2};
    EXPECT_EQ(engine_->prefill(prompt, full).status().code(), Code::kBadInput);
    Sequence sequence = start(3);
    EXPECT_EQ(engine_->extend(sequence, prompt).code(), Code::kBadInput);
    EXPECT_EQ(engine_->log_likelihoods(sequence, prompt).status().code(), Code::kBadInput);
  }
  const Status misfit = engine_->prefill(random_tokens(10, 1), specs_of({"kivi:bits=4,group=128"})).status();
  EXPECT_EQ(misfit.code(), Code::kUsage) << "a group of 128 in a head of 32: " << misfit.message();
}

TEST_F(EngineTest, ByteCapHoldsForAllCachesTogether) {
  const std::vector<Token> prompt = random_tokens(64, 1);
  const std::size_t needed = start(prompt, "full").cache.bytes().allocated;
  const auto tight = open_tiny({.fast_tier_bytes = 2 * needed});
  const auto two = tight->prefill(prompt, specs_of({"full", "full"}));
  EXPECT_TRUE(two.ok()) << two.status().message();
  const Status third = tight->prefill(prompt, specs_of({"full"})).status();
  EXPECT_EQ(third.code(), Code::kExhausted);
  EXPECT_NE(third.message().find(std::to_string(needed)), string::npos) << third.message();
}

TEST_F(EngineTest, AnyByteCapEndsInAResultOrASentence) {
  const std::vector<Token> prompt = random_tokens(130, 1);
  int good = 0;
  int ran_out = 0;
  for (std::size_t cap = 0; cap < 300000; cap += 15000) {
    const auto engine = open_tiny({.fast_tier_bytes = cap});
    auto sequences = engine->prefill(prompt, specs_of({"full", "q8_0"}));
    if (!sequences.ok()) {
      EXPECT_EQ(sequences.status().code(), Code::kExhausted);
      continue;
    }
    Sequence* list[] = {&(*sequences)[0], &(*sequences)[1]};
    const auto done = engine->generate(list, {.max_tokens = 120});
    EXPECT_TRUE(done.ok() || done.status().code() == Code::kExhausted) << done.status().message();
    // A cache that runs out leaves the batch; the other one goes on.
    const bool whole = done.ok() && (*done)[0].failure.ok() && (*done)[1].failure.ok();
    (whole ? good : ran_out) += 1;
  }
  EXPECT_GT(good, 0);
  EXPECT_GT(ran_out, 0) << "some caps hold the prompt but not the answer";
}

TEST_F(EngineTest, SameBitsForAnyThreadCount) {
  const std::vector<Token> prompt = random_tokens(150, 3);
  std::vector<float> reference;
  for (const int threads : {1, 2, 3}) {
    const auto engine = open_tiny({.threads = threads});
    auto sequences = engine->prefill(prompt, specs_of({"full"}));
    ASSERT_TRUE(sequences.ok());
    Sequence* list[] = {&(*sequences)[0]};
    const auto done = engine->generate(list, {.max_tokens = 20});
    ASSERT_TRUE(done.ok());
    if (reference.empty()) reference = (*sequences)[0].logits;
    EXPECT_EQ((*sequences)[0].logits, reference) << threads;
  }
}

// --- a sequence goes on

TEST_F(EngineTest, ExtendEqualsOnePrefillOfAll) {
  const std::vector<Token> all = random_tokens(90, 5);
  const Sequence whole = start(all);
  for (const std::size_t cut : {1U, 40U, 88U, 89U}) {
    Sequence parts = start(std::vector<Token>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(cut)));
    ASSERT_TRUE(engine_->extend(parts, std::span(all).subspan(cut)).ok());
    EXPECT_EQ(parts.cache.next_position(), 90);
    EXPECT_LT(largest_difference(parts.logits, whole.logits), 1e-4) << cut;
  }
}

TEST_F(EngineTest, DecodeEqualsExtendTokenByToken) {
  Sequence decoded = start(40);
  Sequence extended = decoded.fork();
  for (const Token token : random_tokens(8, 9)) {
    Sequence* list[] = {&decoded};
    const Token one[] = {token};
    ASSERT_TRUE(engine_->decode(list, one).ok());
    ASSERT_TRUE(engine_->extend(extended, one).ok());
    EXPECT_LT(largest_difference(decoded.logits, extended.logits), 1e-4);
  }
}

TEST_F(EngineTest, ASecondTurnSeesTheAnswer) {
  const std::vector<Token> prompt = random_tokens(30, 2);
  const std::vector<Token> turn = random_tokens(12, 3);
  for (const int answer : {1, 2, 7}) {
    Sequence sequence = start(prompt);
    const Completion completion = generate(sequence, {.max_tokens = answer});
    ASSERT_TRUE(engine_->extend(sequence, turn).ok());
    std::vector<Token> all = prompt;
    all.insert(all.end(), completion.tokens.begin(), completion.tokens.end());
    all.insert(all.end(), turn.begin(), turn.end());
    EXPECT_EQ(sequence.cache.next_position(), static_cast<int>(all.size()));
    EXPECT_LT(largest_difference(sequence.logits, start(all).logits), 1e-4) << answer;
  }
}

TEST_F(EngineTest, GeneratingInTwoCallsEqualsOne) {
  Sequence once = start(30);
  Sequence twice = once.fork();
  const Completion whole = generate(once, {.max_tokens = 12});
  std::vector<Token> tokens = generate(twice, {.max_tokens = 5}).tokens;
  const Completion rest = generate(twice, {.max_tokens = 7});
  tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(tokens, whole.tokens);
}

TEST_F(EngineTest, ForksGoTheirOwnWays) {
  Sequence original = start(50);
  const std::vector<float> before = original.logits;
  Sequence fork = original.fork();
  ASSERT_TRUE(engine_->extend(fork, random_tokens(20, 8)).ok());
  EXPECT_EQ(original.logits, before);
  EXPECT_EQ(original.cache.next_position(), 50);
  EXPECT_EQ(generate(original, {.max_tokens = 8}).tokens, [&] {
    Sequence fresh = start(50);
    return generate(fresh, {.max_tokens = 8}).tokens;
  }());
}

// --- likelihoods

TEST_F(EngineTest, LikelihoodsEqualTokenByTokenDecoding) {
  const std::vector<Token> gold = random_tokens(40, 7);  // more than one block of logits
  for (const char* spec : {"f32", "full", "q8_0"}) {
    const Sequence sequence = start(60, spec);
    const auto bytes = sequence.cache.bytes();
    const auto likelihoods = engine_->log_likelihoods(sequence, gold);
    ASSERT_TRUE(likelihoods.ok()) << likelihoods.status().message();
    ASSERT_EQ(likelihoods->size(), gold.size());
    EXPECT_EQ(sequence.cache.bytes(), bytes) << "the sequence itself is unchanged";
    EXPECT_EQ(sequence.cache.next_position(), 60);
    if (string(spec) == "q8_0") continue;  // there the pass sees its own exact rows, token by token sees them encoded

    Sequence stepped = sequence.fork();
    for (std::size_t i = 0; i < gold.size(); ++i) {
      EXPECT_NEAR((*likelihoods)[i], log_probability(stepped.logits, gold[i]), string(spec) == "f32" ? 1e-4 : 2e-2)
          << spec << " token " << i;
      Sequence* list[] = {&stepped};
      ASSERT_TRUE(engine_->decode(list, std::span(gold).subspan(i, 1)).ok());
    }
  }
}

TEST_F(EngineTest, LikelihoodsAfterAnAnswerCountItsLastToken) {
  const std::vector<Token> gold = random_tokens(5, 7);
  Sequence sequence = start(20);
  generate(sequence, {.max_tokens = 3});
  const auto likelihoods = engine_->log_likelihoods(sequence, gold);
  ASSERT_TRUE(likelihoods.ok());
  ASSERT_TRUE(engine_->extend(sequence, {}).ok());  // feeds the last token
  const auto fed = engine_->log_likelihoods(sequence, gold);
  ASSERT_TRUE(fed.ok());
  for (std::size_t i = 0; i < gold.size(); ++i) EXPECT_NEAR((*likelihoods)[i], (*fed)[i], 1e-4);
}

TEST_F(EngineTest, LikelihoodsOfNothingAndOfOne) {
  const Sequence sequence = start(20);
  EXPECT_TRUE(engine_->log_likelihoods(sequence, {})->empty());
  const auto one = engine_->log_likelihoods(sequence, std::vector<Token>{5});
  ASSERT_EQ(one->size(), 1U);
  EXPECT_DOUBLE_EQ((*one)[0], log_probability(sequence.logits, 5));
  EXPECT_EQ(engine_->log_likelihoods(start(250), random_tokens(8, 1)).status().code(), Code::kExhausted);
}

// --- opening

TEST(EngineOpen, BadModelsAreRefused) {
  EXPECT_EQ(Engine::open({.model_path = "/nowhere/model.gguf"}).status().code(), Code::kBadInput);
  EXPECT_EQ(Engine::open({.model_path = byte_level_vocabulary().write("no-weights")}).status().code(), Code::kBadInput);
  EXPECT_EQ(Engine::open({.model_path = tiny_path(), .threads = 0}).status().code(), Code::kUsage);
}

TEST(EngineSmolLm2, FindsWhatTheTextSays) {
  const string path = smollm2_path();
  if (path.empty()) GTEST_SKIP() << "the default model is not set up";
  const auto engine = Engine::open({.model_path = path});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const Vocabulary& vocabulary = (*engine)->vocabulary();
  const auto document = document_part(vocabulary, PromptForm::kChat, "The special number of the green door is 4711.");
  const auto question = question_part(vocabulary, PromptForm::kChat, " What is the special number of the green door?");
  ASSERT_TRUE(document.ok() && question.ok());
  auto sequences = (*engine)->prefill(*document, specs_of({"full", "kivi:bits=4"}));
  ASSERT_TRUE(sequences.ok()) << sequences.status().message();

  // The question comes later, on the sealed cache; then gold and wrong answers are weighed, and one is generated.
  std::vector<Sequence*> list;
  for (Sequence& sequence : *sequences) {
    ASSERT_TRUE((*engine)->extend(sequence, *question).ok());
    const auto sum = [&](const char* answer) {
      const auto parts = (*engine)->log_likelihoods(sequence, *vocabulary.tokenize(answer));
      double total = 0;
      for (const double part : *parts) total += part;
      return total;
    };
    EXPECT_GT(sum("The special number of the green door is 4711."), sum("The special number of the green door is 9238.") + 2);
    list.push_back(&sequence);
  }
  const auto done = (*engine)->generate(list, {.max_tokens = 24});
  ASSERT_TRUE(done.ok()) << done.status().message();
  for (const Completion& completion : *done) {
    EXPECT_NE(completion.text.find("4711"), string::npos) << completion.text;
    EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  }
}

TEST_F(EngineTest, DecodeTimesAddUp) {
  Sequence sequence = start(20);
  const int before = engine_->decode_times().steps;
  Sequence* one[] = {&sequence};
  const Token fed[] = {5};
  ASSERT_TRUE(engine_->decode(one, fed).ok());
  ASSERT_TRUE(engine_->decode(one, fed).ok());
  EXPECT_EQ(engine_->decode_times().steps, before + 2);
  EXPECT_GT(engine_->decode_times().linear, 0);
}

}  // namespace
}  // namespace kvartet
