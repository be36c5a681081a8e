#include "model/random_shapes.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

TEST(RandomShapes, EveryNameIsAModelThatCanBeCut) {
  for (const std::string_view name : random_shape_names()) {
    const Result<TinyModelOptions> whole = random_shape(name);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_EQ(whole->weights, TinyWeights::kQ4_1);
    EXPECT_EQ(whole->heads % whole->kv_heads, 0);
    const Result<TinyModelOptions> cut = random_shape(std::string(name) + ",layers=2,weights=f16");
    ASSERT_TRUE(cut.ok()) << cut.status().message();
    EXPECT_EQ(cut->layers, 2);
    EXPECT_EQ(cut->weights, TinyWeights::kF16);
    EXPECT_EQ(cut->hidden, whole->hidden);
  }
}

// The published configuration of Llama 3.2 1B.
TEST(RandomShapes, LlamaOneBillion) {
  const TinyModelOptions options = random_shape("llama-3.2-1b").value();
  EXPECT_EQ(options.layers, 16);
  EXPECT_EQ(options.heads * options.head_dim, 2048);
  EXPECT_EQ(options.kv_heads, 8);
  EXPECT_EQ(options.vocab, 128256);
}

// The published configuration of Qwen3 4B: more channels in its heads than in a row.
TEST(RandomShapes, QwenFourBillion) {
  const TinyModelOptions options = random_shape("qwen3-4b").value();
  EXPECT_EQ(options.architecture, "qwen3");
  EXPECT_EQ(options.layers, 36);
  EXPECT_EQ(options.heads * options.head_dim, 4096);
  EXPECT_EQ(options.hidden, 2560);
  EXPECT_EQ(options.kv_heads, 8);
  EXPECT_EQ(options.vocab, 151936);
}

TEST(RandomShapes, RefusalsNameWhatThereIs) {
  for (const std::string_view text : {"llama", "", "llama-3.2-1b,layers=0", "llama-3.2-1b,layers=17", "llama-3.2-1b,layers=",
                                      "llama-3.2-1b,weights=q9", "llama-3.2-1b,depth=3", "llama-3.2-1b,"}) {
    const Status status = random_shape(text).status();
    EXPECT_EQ(status.code(), Code::kUsage) << text;
  }
  EXPECT_NE(random_shape("llama-7b").status().message().find("llama-3.2-1b"), std::string::npos);
}

TEST(RandomShapes, NamesAreFileNames) { EXPECT_EQ(random_shape_name("llama-3.2-1b,layers=2"), "random-llama-3.2-1b-layers-2"); }

}  // namespace
}  // namespace kvartet
