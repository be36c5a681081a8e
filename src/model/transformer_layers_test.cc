// One layer at a time: chunks, views and graphs that are kept, what is refused, and the two ends, projection and logits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/rng.h"
#include "model/gguf_file.h"
#include "model/test_models.h"
#include "model/transformer.h"
#include "model/transformer_fixture.h"
#include "model/weights_conversion.h"

namespace kvartet {
namespace {

struct LayerRun {
  std::vector<float> q, k, v, k_pre, x;
};

// One layer over `tokens`, cut into chunks of `chunk` rows, with the attention output replaced by the queries.
LayerRun run_layer(Transformer& model, const std::vector<std::int32_t>& tokens, std::size_t chunk, Linear linear) {
  const LayerShape& layer = model.shape().layers[0];
  const auto q_cols = static_cast<std::size_t>(layer.heads * layer.head_dim);
  const auto kv_cols = static_cast<std::size_t>(layer.kv_heads * layer.head_dim);
  Rows x(tokens.size(), static_cast<std::size_t>(model.shape().hidden));
  Rows q(tokens.size(), q_cols);
  Rows k(tokens.size(), kv_cols);
  Rows v(tokens.size(), kv_cols);
  Rows k_pre(tokens.size(), kv_cols);
  std::vector<std::int32_t> positions(tokens.size());
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(3 * i);
  expect_ok(model.embed(tokens, x.view()));
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const std::size_t end = std::min(begin + chunk, tokens.size());
    const auto cut = [&](Rows& rows) { return rows.view().row_range(begin, end); };
    expect_ok(model.pre_attention(1, linear, cut(x), std::span(positions).subspan(begin, end - begin),
                                  {cut(q), cut(k), cut(v), cut(k_pre)}));
    expect_ok(model.post_attention(1, linear, cut(q), cut(x)));
  }
  return {q.values, k.values, v.values, k_pre.values, x.values};
}

// ggml-notes 4: a lone row is the only thing that changes bits, so converted chunks never run one.
TEST(Transformer, ChunksDoNotChangeBits) {
  for (const TinyWeights weights : {TinyWeights::kQ4_1, TinyWeights::kQ8_0, TinyWeights::kBf16}) {
    const auto model = load(tiny_model_file({.weights = weights}));
    ASSERT_NE(model, nullptr);
    const auto tokens = random_tokens(weights == TinyWeights::kQ4_1 ? 1025 : 130, model->shape().vocab);
    const LayerRun whole = run_layer(*model, tokens, tokens.size(), Linear::kConverted);
    for (const std::size_t chunk : {std::size_t{512}, std::size_t{100}, std::size_t{3}, std::size_t{1}}) {
      const LayerRun cut = run_layer(*model, tokens, chunk, Linear::kConverted);
      EXPECT_EQ(cut.q, whole.q) << chunk;
      EXPECT_EQ(cut.k, whole.k) << chunk;
      EXPECT_EQ(cut.v, whole.v) << chunk;
      EXPECT_EQ(cut.k_pre, whole.k_pre) << chunk;
      EXPECT_EQ(cut.x, whole.x) << chunk;
    }
  }
}

// Small graphs are kept while big ones replace the shared scratch: both must still be right afterwards.
TEST(Transformer, CachedGraphsSurviveBiggerOnes) {
  const auto model = load(tiny_model_file({}));
  ASSERT_NE(model, nullptr);
  const auto few = random_tokens(2, 259);
  const auto many = random_tokens(300, 259);
  const LayerRun before = run_layer(*model, few, 2, Linear::kStored);
  const LayerRun big = run_layer(*model, many, many.size(), Linear::kStored);
  EXPECT_EQ(run_layer(*model, few, 2, Linear::kStored).x, before.x);
  EXPECT_EQ(run_layer(*model, many, many.size(), Linear::kStored).x, big.x);
}

// Key before RoPE: at position 0 RoPE turns nothing; elsewhere it keeps the length of a head.
TEST(Transformer, KeysBeforeRope) {
  for (const char* architecture : {"llama", "qwen2"}) {
    const auto model = load(tiny_model_file({.architecture = architecture}));
    ASSERT_NE(model, nullptr);
    const LayerRun run = run_layer(*model, random_tokens(20, 259), 20, Linear::kStored);
    const std::size_t cols = 32;
    const auto squares = [&](const std::vector<float>& rows, std::size_t r) {
      double sum = 0;
      for (std::size_t c = 0; c < 16; ++c) sum += rows[r * cols + c] * rows[r * cols + c];
      return sum;
    };
    for (std::size_t c = 0; c < cols; ++c) EXPECT_FLOAT_EQ(run.k_pre[c], run.k[c]);
    for (std::size_t r = 1; r < 20; ++r) EXPECT_NEAR(squares(run.k_pre, r), squares(run.k, r), 1e-4 * squares(run.k, r));
    EXPECT_NE(run.k_pre, run.k);
  }
}

TEST(Transformer, StridedViewsAndSingleRows) {
  const auto model = load(tiny_model_file({.weights = TinyWeights::kQ8_0}));
  ASSERT_NE(model, nullptr);
  const auto tokens = random_tokens(5, 259);
  const LayerRun dense = run_layer(*model, tokens, 5, Linear::kStored);
  Rows x(5, 64);
  expect_ok(model->embed(tokens, x.view()));
  std::vector<float> wide(5 * 200, -7);
  const std::vector<std::int32_t> positions = {0, 3, 6, 9, 12};
  const MatView<float> q(wide.data(), 5, 64, 200);
  const MatView<float> k(wide.data() + 64, 5, 32, 200);
  const MatView<float> v(wide.data() + 96, 5, 32, 200);
  expect_ok(model->pre_attention(1, Linear::kStored, x.view(), positions, {q, k, v, {}}));
  for (std::size_t r = 0; r < 5; ++r) {
    for (std::size_t c = 0; c < 64; ++c) ASSERT_EQ(q.row(r)[c], dense.q[r * 64 + c]);
    for (std::size_t c = 0; c < 32; ++c) ASSERT_EQ(v.row(r)[c], dense.v[r * 32 + c]);
    for (std::size_t c = 128; c < 200; ++c) ASSERT_EQ(wide[r * 200 + c], -7);
  }
  EXPECT_EQ(run_layer(*model, tokens, 1, Linear::kStored).x, dense.x);  // Q8_0: a lone row has the same bits
}

// Activations beyond 65504 overflow F16: the piece must run with the stored weights instead.
TEST(Transformer, HugeActivationsFallBackToStoredWeights) {
  const auto model = load(tiny_model_file({.weights = TinyWeights::kQ8_0}));
  ASSERT_NE(model, nullptr);
  Rows x(4, 64);
  Rows attention(4, 64);
  for (float& v : attention.values) v = 1e6F;
  expect_ok(model->post_attention(0, Linear::kConverted, attention.view(), x.view()));
  for (const float v : x.values) ASSERT_TRUE(std::isfinite(v));
  Rows stored(4, 64);
  expect_ok(model->post_attention(0, Linear::kStored, attention.view(), stored.view()));
  if (fastest_prefill_type() == GGML_TYPE_F16) {
    EXPECT_EQ(x.values, stored.values);
  }
}

TEST(Transformer, RefusesTokensOutOfRange) {
  const auto model = load(tiny_model_file({}));
  ASSERT_NE(model, nullptr);
  Rows x(2, 64);
  for (const std::int32_t bad : {-1, 259, INT32_MAX}) {
    const std::vector<std::int32_t> tokens = {5, bad};
    const Status status = model->embed(tokens, x.view());
    EXPECT_EQ(status.code(), Code::kBadInput);
    EXPECT_EQ(status.message(), "token " + std::to_string(bad) + " at position 1 is out of range: the vocabulary has 259 tokens");
  }
}

TEST(Transformer, RefusesTooLittleMemory) {
  const std::string path = tiny_model_file({});
  const auto model = Transformer::load(path, {.memory_bytes = 1 << 20});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kExhausted);
  EXPECT_NE(model.status().message().find("only 1.00 MiB is free"), std::string::npos) << model.status().message();
  EXPECT_TRUE(Transformer::load(path, {.memory_bytes = std::uint64_t{1} << 30}).ok());
}

// The reference is the matrix of the file, row by row in double.
TEST(Transformer, ProjectsAttentionByTheOutputMatrix) {
  for (const char* architecture : {"llama", "qwen2", "gemma3"}) {
    const std::string path =
        tiny_model_file({.architecture = architecture, .hidden = 64, .heads = 6, .kv_heads = 2, .head_dim = 16});
    const auto model = load(path);
    ASSERT_NE(model, nullptr);
    const auto file = GgufFile::open(path).value();
    const ggml_tensor* tensor = file->tensor("blk.1.attn_output.weight");
    ASSERT_NE(tensor, nullptr);
    const auto* const matrix = reinterpret_cast<const float*>(file->data() + file->tensor_offset(*tensor));
    for (const std::size_t rows : {1U, 5U, 700U}) {  // 700: more than a graph takes
      Rows attention(rows, 96);
      Rng rng(4);
      for (float& v : attention.values) v = static_cast<float>(rng.normal());
      Rows out(rows, 64);
      expect_ok(model->project_attention(1, attention.view(), out.view()));
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t o = 0; o < 64; ++o) {
          double sum = 0;
          for (std::size_t i = 0; i < 96; ++i) sum += static_cast<double>(matrix[o * 96 + i]) * attention.view().row(r)[i];
          ASSERT_NEAR(out.view().row(r)[o], sum, 1e-4) << architecture << " row " << r << " channel " << o;
        }
      }
    }
  }
}

// Few-bit matrices round what they multiply, by an eighth-bit row of it at most.
TEST(Transformer, ProjectsAttentionByAQuantizedMatrix) {
  const auto model = load(tiny_model_file({.weights = TinyWeights::kQ4_1}));
  ASSERT_NE(model, nullptr);
  Rows attention(2, 64);
  Rng rng(4);
  for (std::size_t i = 0; i < 64; ++i) {
    attention.values[i] = static_cast<float>(rng.normal());
    attention.values[64 + i] = 4 * attention.values[i];
  }
  Rows out(2, 64);
  expect_ok(model->project_attention(0, attention.view(), out.view()));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_FLOAT_EQ(out.values[64 + i], 4 * out.values[i]);  // no bias, no norm
}

TEST(Transformer, LogitsOfManyRowsEqualThoseOfFew) {
  const auto model = load(tiny_model_file({.weights = TinyWeights::kQ8_0}));
  ASSERT_NE(model, nullptr);
  Rows x(70, 64);
  Rng rng(3);
  for (float& v : x.values) v = static_cast<float>(rng.normal());
  Rows all(70, 259);
  expect_ok(model->logits(x.view(), all.view()));
  Rows one(1, 259);
  expect_ok(model->logits(x.view().row_range(69, 70), one.view()));
  EXPECT_TRUE(std::equal(one.values.begin(), one.values.end(), all.values.begin() + 69 * 259));
}

}  // namespace
}  // namespace kvartet
