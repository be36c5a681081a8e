// Prompts that begin alike: the rows of their beginning are computed once, and nobody can tell from the bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/memory_file_system.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "engine/kept_prefills.h"
#include "model/shared_prefix.h"
#include "model/tiny_model.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

// Ranks rows by windows of queries, by all queries and not at all; keys before RoPE; two windows, one wider than what is held.
const std::vector<std::string> kCaches = {"full",           "snapkv:budget=200", "snapkv:budget=180,window=150", "h2o:budget=150",
                                          "tova:budget=90", "kivi:bits=2",       "shadowkv:rank=16,sinks=32"};

TinyModelOptions tiny() { return {.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .context = 1536}; }

std::unique_ptr<Engine> open(const TinyModelOptions& model, EngineOptions options = {}) {
  static int number = 0;
  options.model_path = test_files.add("shared-prefix-" + std::to_string(number++));
  const Status written = write_tiny_model(options.model_path, model);
  EXPECT_TRUE(written.ok()) << written.message();
  Result<std::unique_ptr<Engine>> engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

// `shared` tokens that are always the same, and others.
std::vector<Token> prompt_of(int shared, int tokens, std::uint64_t question) {
  std::vector<Token> prompt = random_tokens(shared, 1);
  const std::vector<Token> more = random_tokens(tokens - shared, question);
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

struct Seen {
  std::vector<std::vector<float>> logits;  // of every cache after the prompt and after a token more
  std::vector<ByteAccount> bytes;
  int taken = 0;
  bool operator==(const Seen& o) const { return logits == o.logits && bytes == o.bytes; }
};

Seen look(Engine& engine, Result<std::vector<Sequence>> sequences) {
  Seen seen;
  EXPECT_TRUE(sequences.ok()) << sequences.status().message();
  if (!sequences.ok()) return seen;
  seen.taken = sequences->front().prefix_taken;
  for (Sequence& sequence : *sequences) {
    seen.logits.push_back(sequence.logits);
    seen.bytes.push_back(sequence.cache.bytes());
    Sequence* one[] = {&sequence};
    EXPECT_TRUE(engine.decode(one, std::vector<Token>{7}).ok());
    seen.logits.push_back(sequence.logits);
  }
  return seen;
}

// Those that the model can have.
std::vector<CacheSpec> specs_for(const Engine& engine, const std::vector<std::string>& texts) {
  std::vector<CacheSpec> specs = specs_of(texts);
  std::erase_if(specs, [&](const CacheSpec& spec) { return !check_spec(spec, engine.shape()).ok(); });
  return specs;
}

Seen whole(Engine& engine, const std::vector<Token>& prompt, const std::vector<std::string>& caches = kCaches) {
  return look(engine, engine.prefill(prompt, specs_for(engine, caches)));
}
Seen shared(Engine& engine, const std::vector<Token>& prompt, int tokens, const std::vector<std::string>& caches = kCaches) {
  return look(engine, engine.prefill_shared(prompt, tokens, specs_for(engine, caches)));
}

// Around the borders of chunks (512 rows), of attention's blocks and of what is held at all.
TEST(SharedPrefix, BitsAreThoseOfAWholePrefillAtEveryBorder) {
  const auto engine = open(tiny());
  constexpr int kTokens = 1100;
  for (const int border : {64, 65, 127, 128, 300, 511, 512, 513, 514, 1024, 1025, 1026, 1098, 1099, 1100}) {
    const int taken = std::min(border, kTokens - 2);
    const std::vector<Token> first = prompt_of(border, kTokens, 5);
    const std::vector<Token> second = prompt_of(border, kTokens, 6);
    engine->drop_shared_prefix();
    const Seen computing = shared(*engine, first, border);
    EXPECT_EQ(computing.taken, 0) << border;
    EXPECT_EQ(computing, whole(*engine, first)) << border << ": holding changed what is computed";
    const Seen later = shared(*engine, second, border);
    EXPECT_EQ(later.taken, taken) << border;
    EXPECT_EQ(later, whole(*engine, second)) << border;
  }
}

// ggml has a kernel for every type; experts are chosen row by row, windows end in front of a prefix's first rows.
TEST(SharedPrefix, BitsAreThoseOfAWholePrefillForEveryTypeAndArchitecture) {
  std::vector<TinyModelOptions> models;
  for (const TinyWeights weights :
       {TinyWeights::kF16, TinyWeights::kBf16, TinyWeights::kQ8_0, TinyWeights::kQ4_1, TinyWeights::kQ4_0}) {
    models.push_back(tiny());
    models.back().weights = weights;
  }
  for (const char* architecture : {"qwen2", "qwen3", "qwen3moe", "gemma3"}) {
    models.push_back(tiny());
    models.back().architecture = architecture;
  }
  models.back().layers = 4;
  models.back().window = 48;
  models.back().window_period = 2;
  for (const TinyModelOptions& model : models) {
    const auto engine = open(model);
    for (const int border : {100, 513}) {
      const std::vector<Token> prompt = prompt_of(border, 600, 6);
      shared(*engine, prompt_of(border, 560, 5), border, {"full", "h2o:budget=150"});  // fewer parts than are asked for next
      const Seen refilled = shared(*engine, prompt, border);
      EXPECT_EQ(refilled.taken, 0);
      const Seen taken = shared(*engine, prompt, border);
      EXPECT_EQ(taken.taken, border);
      const Seen computed = whole(*engine, prompt);
      EXPECT_EQ(taken, computed) << model.architecture << " " << static_cast<int>(model.weights) << " " << border;
      EXPECT_EQ(refilled, computed) << model.architecture << " " << static_cast<int>(model.weights) << " " << border;
    }
  }
}

TEST(SharedPrefix, ThreadsDoNotChangeBits) {
  const std::vector<Token> prompt = prompt_of(300, 400, 6);
  const auto one = open(tiny());
  const auto three = open(tiny(), {.threads = 3});
  for (Engine* engine : {one.get(), three.get()}) shared(*engine, prompt_of(300, 350, 5), 300);
  EXPECT_EQ(shared(*three, prompt, 300), shared(*one, prompt, 300));
}

TEST(SharedPrefix, OtherTokensAreComputedAnew) {
  const auto engine = open(tiny());
  const std::vector<Token> prompt = prompt_of(200, 300, 6);
  shared(*engine, prompt, 200);
  std::vector<Token> other = prompt;
  other[17] ^= 1;
  const Seen seen = shared(*engine, other, 200);
  EXPECT_EQ(seen.taken, 0);
  EXPECT_EQ(seen, whole(*engine, other));
  EXPECT_EQ(shared(*engine, other, 199).taken, 0) << "another border of the same tokens";
  EXPECT_EQ(engine->shared_prefix_tally().taken, 0);
}

TEST(SharedPrefix, ShortOnesAreNotHeld) {
  const auto engine = open(tiny());
  for (const int tokens : {1, 2, 3, kLeastPrefixTokens, kLeastPrefixTokens + 1}) {
    const std::vector<Token> prompt = random_tokens(tokens, 1);
    EXPECT_EQ(shared(*engine, prompt, tokens), whole(*engine, prompt));
    EXPECT_EQ(engine->shared_prefix_bytes(), 0U) << tokens;
  }
}

TEST(SharedPrefix, BytesAreAsPredictedAndGoWhenTheyAreDropped) {
  for (const char* architecture : {"llama", "gemma3"}) {
    TinyModelOptions model = tiny();
    model.architecture = architecture;
    if (model.architecture == "gemma3") model.window = 48;
    const auto engine = open(model);
    shared(*engine, prompt_of(200, 300, 6), 200, {"full"});
    EXPECT_EQ(engine->shared_prefix_bytes(), SharedPrefix::bytes_of(engine->shape(), 200, {.queries = 128}));
    if (model.architecture == "gemma3") continue;
    shared(*engine, prompt_of(200, 300, 6), 200);
    const PrefixParts all = {.queries = 150, .key_pre = true, .column_sums = true};
    EXPECT_EQ(engine->shared_prefix_bytes(), SharedPrefix::bytes_of(engine->shape(), 200, all));
    EXPECT_EQ(engine->shared_prefix_tally().most_bytes, engine->shared_prefix_bytes());
    engine->drop_shared_prefix();
    EXPECT_EQ(engine->shared_prefix_bytes(), 0U);
  }
}

// A prefill that ends half-way leaves nothing that a later prompt takes for whole.
TEST(SharedPrefix, AnInterruptedPrefillServesNobody) {
  std::atomic<bool> cancel = false;
  const auto engine = open(tiny(), {.cancel = &cancel});
  const std::vector<Token> prompt = prompt_of(600, 700, 6);
  const Result<std::vector<Sequence>> cut =
      engine->prefill_shared(prompt, 600, specs_of({"full"}), [&](double share) { cancel = share > 0.8; });
  EXPECT_EQ(cut.status().code(), Code::kCancelled);
  cancel = false;
  const Seen seen = shared(*engine, prompt, 600);
  EXPECT_EQ(seen.taken, 0);
  EXPECT_EQ(seen, whole(*engine, prompt));
  EXPECT_EQ(shared(*engine, prompt, 600).taken, 600);
}

// Kept files hold what a whole prefill gives, wherever its rows came from.
TEST(SharedPrefix, AKeptPrefillIsTheSame) {
  const auto engine = open(tiny());
  const std::vector<Token> prompt = prompt_of(300, 400, 6);
  const Seen computed = whole(*engine, prompt);
  MemoryFileSystem files;
  KeptPrefills kept({.directory = ".", .model = "tiny", .program = "test", .files = &files});
  engine->use_kept_prefills(&kept);
  shared(*engine, prompt_of(300, 380, 5), 300);
  EXPECT_EQ(shared(*engine, prompt, 300).taken, 300);
  EXPECT_EQ(kept.tally().kept, 2);
  const Seen read = look(*engine, engine->prefill_shared(prompt, 300, specs_of(kCaches)));
  EXPECT_EQ(kept.tally().read, 1);
  EXPECT_EQ(read.taken, 0);
  EXPECT_EQ(read, computed);
}

// A prompt's own time is that of its whole prefill, also where most of it was computed for another one.
TEST(SharedPrefix, TimesAreThoseOfWholePrompts) {
  const auto engine = open(tiny());
  const auto first = engine->prefill_shared(prompt_of(1000, 1010, 5), 1000, specs_of({"full"}));
  const auto second = engine->prefill_shared(prompt_of(1000, 1010, 6), 1000, specs_of({"full"}));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(second->front().prefix_taken, 1000);
  EXPECT_EQ(second->front().fork().prefix_taken, 1000);
  // Both count the seconds that the prefix took; nothing else is comparable without trusting a clock.
  EXPECT_GT(first->front().prefill_s, 0);
  EXPECT_GT(second->front().prefill_s, first->front().prefill_s / 4);
}

}  // namespace
}  // namespace kvartet
