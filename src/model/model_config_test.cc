// What differs between layers and architectures, as metadata says it: windows, experts, RoPE.
#include "model/model_config.h"

#include <functional>
#include <string>
#include <vector>

#include <gguf.h>
#include <gtest/gtest.h>

#include "model/test_models.h"

namespace kvartet {
namespace {

Result<ModelConfig> config_of(const TinyModelOptions& options, const std::function<void(gguf_context*)>& change = {}) {
  std::string path = tiny_model_file(options);
  if (change) {  // metadata is enough: the tensors' data may be missing
    const gguf_context_ptr file(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
    ggml_context* tensors = nullptr;
    const gguf_context_ptr whole(gguf_init_from_file(path.c_str(), {.no_alloc = false, .ctx = &tensors}));
    const ggml_context_ptr owner(tensors);
    const gguf_context_ptr changed(gguf_init_empty());
    gguf_set_kv(changed.get(), file.get());
    for (ggml_tensor* t = ggml_get_first_tensor(tensors); t != nullptr; t = ggml_get_next_tensor(tensors, t)) {
      if (gguf_find_tensor(file.get(), t->name) >= 0) gguf_add_tensor(changed.get(), t);
    }
    change(changed.get());
    path = test_file("changed.gguf");
    EXPECT_TRUE(gguf_write_to_file(changed.get(), path.c_str(), false));
  }
  const auto file = GgufFile::open(path);
  if (!file.ok()) return file.status();
  return read_model_config(**file);
}

std::vector<int> windows(const Result<ModelConfig>& config) {
  std::vector<int> list;
  EXPECT_TRUE(config.ok()) << config.status().message();
  for (const LayerShape& layer : config->shape.layers) list.push_back(layer.window);
  return list;
}

TEST(ModelConfig, WindowsOfGemmaAndMistral) {
  EXPECT_EQ(windows(config_of({.architecture = "gemma3", .layers = 7, .window = 64})),
            (std::vector<int>{64, 64, 64, 64, 64, 0, 64}));
  EXPECT_EQ(windows(config_of({.architecture = "gemma3", .layers = 4, .window = 64, .window_period = 2})),
            (std::vector<int>{64, 0, 64, 0}));
  EXPECT_EQ(windows(config_of({.architecture = "gemma3", .layers = 3})), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(windows(config_of({.layers = 2, .window = 64})), (std::vector<int>{64, 64}));
  EXPECT_EQ(windows(config_of({.context = 512, .window = 512})), (std::vector<int>{0, 0}));
}

TEST(ModelConfig, AWindowPatternMayBeAList) {
  const TinyModelOptions options = {.architecture = "gemma3", .layers = 3, .window = 64};
  const char* key = "gemma3.attention.sliding_window_pattern";
  const bool flags[] = {false, true, true, false};
  const std::int32_t numbers[] = {1, 0, 1};
  EXPECT_EQ(windows(config_of(options, [&](gguf_context* g) { gguf_set_arr_data(g, key, GGUF_TYPE_BOOL, flags, 4); })),
            (std::vector<int>{0, 64, 64}));
  EXPECT_EQ(windows(config_of(options, [&](gguf_context* g) { gguf_set_arr_data(g, key, GGUF_TYPE_INT32, numbers, 3); })),
            (std::vector<int>{64, 0, 64}));
  const auto few = config_of(options, [&](gguf_context* g) { gguf_set_arr_data(g, key, GGUF_TYPE_BOOL, flags, 2); });
  EXPECT_EQ(few.status().code(), Code::kBadInput);
  EXPECT_NE(few.status().message().find("2 entries for 3 layers"), std::string::npos) << few.status().message();
  const auto text = config_of(options, [&](gguf_context* g) { gguf_set_val_str(g, key, "LLG"); });
  EXPECT_EQ(text.status().code(), Code::kBadInput);
}

// A window that holds the whole context is none for the cache, but its layers still turn by the base of windowed layers.
TEST(ModelConfig, WindowedLayersHaveTheirOwnRope) {
  const auto config = config_of(
      {.architecture = "gemma3", .context = 512, .rope_base = 1e6, .rope_linear = 8, .window = 600, .window_period = 2});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->shape.layers[0].window, 0);
  EXPECT_TRUE(config->uses_window_rope(0));
  EXPECT_FALSE(config->uses_window_rope(1));
  EXPECT_EQ(config->rope.base, 1e6);
  EXPECT_EQ(config->rope.scale, 0.125);
  EXPECT_EQ(config->window_rope->base, 1e4);
  EXPECT_EQ(config->window_rope->scale, 1);
  EXPECT_FALSE(config_of({.window = 64})->uses_window_rope(0));
}

TEST(ModelConfig, Experts) {
  const auto config = config_of({.architecture = "qwen3moe", .ffn = 96, .experts = 6, .experts_used = 3});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->experts->count, 6);
  EXPECT_EQ(config->experts->used, 3);
  EXPECT_EQ(config->shape.ffn, 96);
  const auto greedy =
      config_of({.architecture = "qwen3moe"}, [](gguf_context* g) { gguf_set_val_u32(g, "qwen3moe.expert_used_count", 9); });
  EXPECT_NE(greedy.status().message().find("uses 9 experts per token, but has only 4"), std::string::npos)
      << greedy.status().message();
}

TEST(ModelConfig, RefusesWhatItWouldComputeWrongly) {
  const auto capped =
      config_of({.architecture = "gemma3"}, [](gguf_context* g) { gguf_set_val_f32(g, "gemma3.final_logit_softcapping", 30); });
  EXPECT_NE(capped.status().message().find("caps its logits at 30"), std::string::npos) << capped.status().message();
  const auto yarn = config_of({.architecture = "gemma3", .rope_yarn = 4});
  EXPECT_EQ(yarn.status().code(), Code::kBadInput);
}

}  // namespace
}  // namespace kvartet
