// A cache with angles by row has no last position: text goes on beyond what the model was trained for (compression.md 6.1).
#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "model/tiny_model.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

TEST(Endless, GoesOnBeyondTheTrainedContextInConstantMemory) {
  const std::string path = test_files.add("endless-tiny");
  ASSERT_TRUE(write_tiny_model(path, {.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .context = 128}).ok());
  const auto engine = Engine::open({.model_path = path}).value();
  const auto specs = specs_of({"streamingllm:sinks=4,window=60,rope=rerotate", "streamingllm:sinks=4,window=60"});
  std::vector<Sequence> sequences = engine->prefill(random_tokens(100, 1), specs).value();
  Sequence* const turned[] = {&sequences[0]};
  Sequence* const absolute[] = {&sequences[1]};
  const GenerateOptions options = {.max_tokens = 300, .ignore_end = true};
  EXPECT_EQ(engine->generate(absolute, options).value()[0].tokens.size(), 28U);

  const std::size_t bytes = sequences[0].cache.bytes().allocated;
  const Completion completion = engine->generate(turned, options).value()[0];
  EXPECT_EQ(completion.tokens.size(), 300U);
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
  EXPECT_EQ(sequences[0].cache.bytes().allocated, bytes);

  // A question, its likelihood and single steps on top of it.
  const std::vector<Token> question = random_tokens(90, 2);
  ASSERT_TRUE(engine->extend(sequences[0], question).ok());
  EXPECT_EQ(sequences[0].cache.next_position(), 490);
  const std::vector<double> likelihoods = engine->log_likelihoods(sequences[0], random_tokens(10, 3)).value();
  for (const double likelihood : likelihoods) EXPECT_TRUE(std::isfinite(likelihood));
  const Token one[] = {7};
  EXPECT_TRUE(engine->decode(turned, one).ok());
  EXPECT_EQ(engine->extend(sequences[0], random_tokens(129, 4)).code(), Code::kExhausted);  // at once, the model sees 128
}

}  // namespace
}  // namespace kvartet
