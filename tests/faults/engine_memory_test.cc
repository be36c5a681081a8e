// An engine whose caches run out of memory anywhere: it says so, and goes on working with what it has.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

class EngineMemory : public testing::TestWithParam<const char*> {
 protected:
  EngineMemory() {
    TinyModelOptions options;
    options.head_dim = 32;
    const Status written = write_tiny_model(path_, options);
    EXPECT_TRUE(written.ok()) << written.message();
  }
  ~EngineMemory() override { std::remove(path_.c_str()); }

  std::unique_ptr<Engine> engine(std::size_t cap) const {
    EngineOptions options;
    options.model_path = path_;
    options.fast_tier_bytes = cap;
    Result<std::unique_ptr<Engine>> opened = Engine::open(options);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return std::move(opened).value();
  }

  // A prompt, a second question on a fork, likelihoods, and an answer: everything that allocates.
  static Result<std::string> work(Engine& engine, const CacheSpec& spec) {
    KV_ASSIGN(const std::vector<Token> prompt, engine.vocabulary().tokenize(std::string(150, 'p')));
    KV_ASSIGN(const std::vector<Token> question,
              engine.vocabulary().tokenize("How many? And where, and since when, do you know?"));
    KV_ASSIGN(std::vector<Sequence> sequences, engine.prefill(prompt, {&spec, 1}));
    Sequence fork = sequences[0].fork();
    KV_TRY(engine.extend(fork, question));
    KV_ASSIGN(const std::vector<double> likelihoods, engine.log_likelihoods(fork, question));
    Sequence* both[] = {&sequences[0], &fork};
    GenerateOptions options;
    options.max_tokens = 150;
    options.ignore_end = true;
    KV_ASSIGN(const std::vector<Completion> done, engine.generate(both, options));
    for (const Completion& completion : done) KV_TRY(completion.failure);
    return done[0].text + "|" + done[1].text + "|" + std::to_string(likelihoods.back());
  }

  const std::string path_ = testing::TempDir() + "kvartet_faults_" + std::to_string(getpid()) + ".gguf";
};

TEST_P(EngineMemory, ShortByAnyNumberOfBytes) {
  const CacheSpec spec = *parse_spec(GetParam());
  const Result<std::string> whole = work(*engine(Arena::kNoCap), spec);
  ASSERT_TRUE(whole.ok()) << whole.status().message();

  // One engine after another with a little more memory: the failing allocation moves through the whole work.
  constexpr std::size_t kStep = 7'000;
  int refusals = 0;
  std::size_t cap = 1;
  for (;; cap += kStep) {
    const std::unique_ptr<Engine> small = engine(cap);
    const Result<std::string> got = work(*small, spec);
    // Nothing leaks: the second time it is just the same.
    const Result<std::string> again = work(*small, spec);
    ASSERT_EQ(got.ok(), again.ok()) << cap;
    if (got.ok()) {
      EXPECT_EQ(*got, *whole);
      EXPECT_EQ(*again, *whole);
      break;
    }
    ASSERT_EQ(got.status().code(), Code::kExhausted) << cap << ": " << got.status().message();
    EXPECT_EQ(again.status().code(), Code::kExhausted);
    ++refusals;
    ASSERT_LT(cap, std::size_t{4} << 20) << "it never succeeds";
  }
  EXPECT_GT(refusals, 3);
}

std::string test_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Caches, EngineMemory,
                         testing::Values("full", "f32", "q8_0", "kivi:bits=4,residual=32", "streamingllm:window=64",
                                         "snapkv:budget=0.25+kivi:bits=2,residual=32"),
                         test_name);

}  // namespace
}  // namespace kvartet
