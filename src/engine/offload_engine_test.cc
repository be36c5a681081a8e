// Caches that select rows, end to end on tiny models (offloading.md 11: T-PREFILL, T-FULL, and rotation as the model does it).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/faulty_file_system.h"
#include "core/rng.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "engine/log_softmax.h"
#include "model/tiny_model.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

constexpr int kPrompt = 200;

std::unique_ptr<Engine> open_tiny(TinyModelOptions model, int threads = 1) {
  model.hidden = 128;
  model.heads = 6;  // three query heads for a KV head: not a power of two
  model.kv_heads = 2;
  model.head_dim = 32;
  static int number = 0;
  const std::string path = test_files.add("offload-tiny-" + std::to_string(number++));
  const Status written = write_tiny_model(path, model);
  EXPECT_TRUE(written.ok()) << written.message();
  return Engine::open({.model_path = path, .threads = threads}).value();
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

TEST(OffloadEngine, TPrefillTheFirstTokenIsThatOfFull) {
  const auto engine = open_tiny({});
  auto sequences =
      engine->prefill(random_tokens(kPrompt, 1), specs_of({"full", "yakv", "yakv-engine:min=0", "shadowkv:rank=16,sinks=32",
                                                           "quest:dense=0", "oracle", "arkvale", "infinigen:dense=1", "lrqk"}));
  ASSERT_TRUE(sequences.ok()) << sequences.status().message();
  for (const Sequence& sequence : *sequences) EXPECT_EQ(sequence.logits, (*sequences)[0].logits);
  for (std::size_t i = 1; i < sequences->size(); ++i) EXPECT_TRUE((*sequences)[i].cache.acted()) << i;
}

// Keys stored before rotation and turned after fetching give what keys stored after rotation give.
TEST(OffloadEngine, RotationAfterFetchingIsTheModelsOwn) {
  for (const TinyModelOptions& model :
       {TinyModelOptions{}, {.architecture = "qwen2"}, {.rope_factors = true}, {.rope_linear = 4}}) {
    const auto engine = open_tiny(model);
    auto sequences = engine->prefill(random_tokens(kPrompt, 2), specs_of({"select:index=f32,keys=f32,rope=pre,budget=60",
                                                                          "select:index=f32,keys=f32,rope=post,budget=60"}));
    ASSERT_TRUE(sequences.ok()) << sequences.status().message();
    Sequence* both[] = {&(*sequences)[0], &(*sequences)[1]};
    const std::vector<Token> text = random_tokens(12, 3);
    for (const Token token : text) {
      const Token tokens[] = {token, token};
      const Status status = engine->decode(both, tokens);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_LT(largest_difference(both[0]->logits, both[1]->logits), 2e-3) << model.architecture;
    }
  }
}

TEST(OffloadEngine, LikelihoodsAndExtensionsGoStepByStep) {
  const auto engine = open_tiny({});
  const std::vector<Token> gold = random_tokens(9, 4);
  for (const std::string spec : {"yakv", "quest:dense=0", "shadowkv:rank=16,sinks=32", "infinigen:dense=1", "lrqk"}) {
    auto sequences = engine->prefill(random_tokens(kPrompt, 1), specs_of({spec}));
    ASSERT_TRUE(sequences.ok()) << sequences.status().message();
    Sequence& sequence = (*sequences)[0];
    const auto likelihoods = engine->log_likelihoods(sequence, gold);
    ASSERT_TRUE(likelihoods.ok()) << likelihoods.status().message();
    Sequence stepped = sequence.fork();
    Sequence* one[] = {&stepped};
    for (std::size_t i = 0; i < gold.size(); ++i) {
      EXPECT_EQ((*likelihoods)[i], log_probability(stepped.logits, gold[i])) << spec;
      ASSERT_TRUE(engine->decode(one, std::span(gold).subspan(i, 1)).ok());
    }
    ASSERT_TRUE(engine->extend(sequence, gold).ok());
    EXPECT_EQ(sequence.logits, stepped.logits) << spec;
    EXPECT_EQ(sequence.cache.next_position(), kPrompt + 9);
  }
}

TEST(OffloadEngine, AnyNumberOfThreadsGivesTheSameBits) {
  std::vector<std::vector<float>> logits;
  for (const int threads : {1, 3}) {
    const auto engine = open_tiny({}, threads);
    auto sequences = engine->prefill(random_tokens(kPrompt, 1), specs_of({"yakv"}));
    ASSERT_TRUE(sequences.ok());
    Sequence* one[] = {&(*sequences)[0]};
    const Token tokens[] = {7};
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->decode(one, tokens).ok());
    logits.push_back(one[0]->logits);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

// Rows that are asked for a layer early, from files on whose readers other threads work: the same bits as from memory, on any
// number of threads, whatever runs beside. What the thread sanitizer is to see of tiers with a whole model (CONTRIBUTING.md).
TEST(OffloadEngine, GuessedRowsComeFromFilesAsFromMemory) {
  const std::string guessing = "yakv:queries=guessed,dense=1,budget=20,local=8";
  std::vector<float> first;
  for (const int threads : {1, 3}) {
    const auto engine = open_tiny({.layers = 4}, threads);
    auto sequences =
        engine->prefill(random_tokens(kPrompt, 1), specs_of({guessing, guessing + ",tier=mmap", guessing + ",tier=disk",
                                                             guessing + ",tier=disk,cache=0.125", "yakv:tier=disk"}));
    ASSERT_TRUE(sequences.ok()) << sequences.status().message();
    Sequence beside = (*sequences)[2].fork();
    std::vector<Sequence*> all = {&beside};
    for (Sequence& sequence : *sequences) all.push_back(&sequence);
    for (const Token token : random_tokens(8, 9)) {
      const Status status = engine->decode(all, std::vector<Token>(all.size(), token));
      ASSERT_TRUE(status.ok()) << status.message();
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ((*sequences)[i].logits, beside.logits) << i << " on " << threads;
    }
    EXPECT_NE((*sequences)[4].logits, beside.logits);  // own queries choose other rows
    if (first.empty()) first = beside.logits;
    EXPECT_EQ(beside.logits, first);
    for (Sequence* sequence : all) EXPECT_TRUE(sequence->cache.check_integrity().ok());
  }
}

// Rows of the answer that go far while it is made: the same bits on every number of threads and as one of a batch.
TEST(OffloadEngine, GeneratedRowsGoFarOnAWholeModel) {
  std::vector<std::vector<float>> logits;
  for (const int threads : {1, 2, 3, 7, 16}) {
    const auto engine = open_tiny({}, threads);
    auto sequences = engine->prefill(random_tokens(kPrompt, 1), specs_of({"yakv:generated=64", "full"}));
    ASSERT_TRUE(sequences.ok()) << sequences.status().message();
    Sequence* both[] = {&(*sequences)[0], &(*sequences)[1]};
    const std::vector<Token> fed = random_tokens(100, 9);
    for (const Token token : fed) {
      const Token tokens[] = {token, token};
      ASSERT_TRUE(engine->decode(both, tokens).ok());
    }
    EXPECT_EQ(both[0]->cache.bytes(), *predict_bytes(both[0]->cache.spec(), engine->shape(), kPrompt, 100));
    ASSERT_TRUE(both[0]->cache.check_integrity().ok());
    logits.push_back(both[0]->logits);
  }
  for (const auto& other : logits) EXPECT_EQ(other, logits[0]);
}

// T-FULL on a whole model whose heads share by three, and the order that offloading.md 11 expects of the two presets where the
// prompt asks for look-ups: an earlier passage comes again, so that each step wants the rows that followed it.
TEST(OffloadEngine, TModelLevel) {
  const auto engine = open_tiny({.layers = 3});
  std::vector<Token> prompt = random_tokens(330, 21);
  const std::vector<Token> passage(prompt.begin() + 40, prompt.begin() + 100);
  prompt.insert(prompt.end(), passage.begin(), passage.begin() + 20);
  // r = C / 8, C = 64; equal rows: 24 selected and 64 kept.
  auto sequences = engine->prefill(
      prompt, specs_of({"full", "yakv:budget=0.999", "yakv:budget=24,local=64", "shadowkv:rank=8,budget=24,sinks=32,local=32"}));
  ASSERT_TRUE(sequences.ok()) << sequences.status().message();
  std::vector<Sequence*> all;
  for (Sequence& sequence : *sequences) all.push_back(&sequence);
  double divergence[4] = {};
  for (std::size_t i = 20; i < passage.size(); ++i) {
    ASSERT_TRUE(engine->decode(all, std::vector<Token>(all.size(), passage[i])).ok());
    EXPECT_EQ(all[1]->logits, all[0]->logits);
    for (std::size_t c = 2; c < all.size(); ++c) {
      for (int token = 0; token < engine->shape().vocab; ++token) {
        const double dense = log_probability(all[0]->logits, token);
        divergence[c] += std::exp(dense) * (dense - log_probability(all[c]->logits, token));
      }
    }
  }
  EXPECT_GT(divergence[2], 0);
  EXPECT_LT(divergence[2], divergence[3]);
}

TEST(OffloadEngine, ObserverSeesEveryLayerOnce) {
  const auto engine = open_tiny({});
  auto sequences = engine->prefill(random_tokens(kPrompt, 1), specs_of({"full"}));
  ASSERT_TRUE(sequences.ok());
  std::vector<int> layers;
  const Status status = engine->decode_observed((*sequences)[0], 5, [&](const LayerQuestion& question) -> Status {
    layers.push_back(question.layer);
    EXPECT_EQ(question.q.rows, 6U);
    EXPECT_EQ(question.k.rows, 2U);
    EXPECT_EQ(question.v.cols, 32U);
    EXPECT_EQ(question.guessed_q.rows, question.layer == 0 ? 0U : 6U);
    return {};
  });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(layers, (std::vector<int>{0, 1}));
}

// A disk that refuses ends the sequences whose rows lie there; one in memory answers as if it were alone.
TEST(OffloadEngine, AFailingDiskEndsItsSequenceOnly) {
  TinyModelOptions model;
  model.hidden = 128;
  model.heads = 6;
  model.kv_heads = 2;
  model.head_dim = 32;
  const std::string path = test_files.add("offload-faults");
  ASSERT_TRUE(write_tiny_model(path, model).ok());
  FaultyFileSystem files(FileSystem::real());
  const auto engine =
      Engine::open({.model_path = path, .threads = 1, .tier_directory = testing::TempDir(), .files = &files}).value();
  auto sequences = engine->prefill(random_tokens(kPrompt, 1), specs_of({"yakv", "yakv:tier=disk", "full", "yakv:tier=mmap"}));
  ASSERT_TRUE(sequences.ok()) << sequences.status().message();
  const GenerateOptions options{.max_tokens = 12, .ignore_end = true};
  const auto generate = [&](const std::vector<std::size_t>& which) {
    std::vector<Sequence> forks;
    for (const std::size_t i : which) forks.push_back((*sequences)[i].fork());
    std::vector<Sequence*> list;
    for (Sequence& fork : forks) list.push_back(&fork);
    return engine->generate(list, options);
  };
  const auto together = generate({0, 1, 2, 3});
  ASSERT_TRUE(together.ok()) << together.status().message();
  EXPECT_EQ((*together)[1].tokens, (*together)[0].tokens);
  EXPECT_EQ((*together)[3].tokens, (*together)[0].tokens);
  for (const long nth : {1L, 3L, 20L}) {
    files.arm({.nth = nth, .lasting = true});
    const auto hurt = generate({0, 1, 2, 3});
    ASSERT_TRUE(hurt.ok()) << hurt.status().message();
    for (const std::size_t i : {0, 2}) {
      EXPECT_EQ((*hurt)[i].tokens, (*together)[i].tokens) << nth;
      EXPECT_EQ((*hurt)[i].finish_reason, FinishReason::kLength);
    }
    for (const std::size_t i : {1, 3}) {
      EXPECT_EQ((*hurt)[i].finish_reason, FinishReason::kFailed) << nth;
      EXPECT_EQ((*hurt)[i].failure.code(), Code::kIo);
      EXPECT_NE((*hurt)[i].failure.message().find(testing::TempDir()), std::string::npos) << (*hurt)[i].failure.message();
    }
    files.arm({.nth = nth, .lasting = true});
    EXPECT_EQ(generate({1}).status().code(), Code::kIo);  // the only sequence: the call ends
  }
  files.arm({});
}

}  // namespace
}  // namespace kvartet
