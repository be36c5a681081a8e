// T5 and T6 of compression.md 11: what an evicting cache computes equals a full cache in which the evicted rows are masked,
// step by step, at the same positions: over a first prompt, a second one on the sealed cache, and decode steps past many
// evictions. The reference shares the linear layers and nothing else: plain loops in double over every row ever seen.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/rng.h"
#include "model/forward.h"
#include "model/tiny_model.h"
#include "model/transformer.h"

namespace kvartet {
namespace {

using Rows = std::vector<std::vector<float>>;  // one per token

// A full cache with masks. Rows are f32, as in the caches under test: rounding to f16 would turn differences in the last bit
// into differences of 2^-11 and hide what is tested.
class MaskedReference {
 public:
  explicit MaskedReference(Transformer& transformer) : transformer_(transformer), shape_(transformer.shape()) {
    keys_.resize(shape_.layers.size());
    values_.resize(shape_.layers.size());
  }

  // visible[layer][kv_head]: positions before this call that its tokens see. Returns logits of the last token.
  std::vector<float> run(const std::vector<std::int32_t>& tokens, const std::vector<std::vector<std::set<int>>>& visible) {
    const std::size_t n = tokens.size();
    const int first = static_cast<int>(keys_[0].size());
    std::vector<std::int32_t> positions(n);
    std::iota(positions.begin(), positions.end(), first);
    std::vector<float> x(n * static_cast<std::size_t>(shape_.hidden));
    const MatView<float> hidden(x.data(), n, static_cast<std::size_t>(shape_.hidden));
    EXPECT_TRUE(transformer_.embed(tokens, hidden).ok());
    for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer)
      run_layer(static_cast<int>(layer), hidden, positions, visible[layer]);
    std::vector<float> logits(static_cast<std::size_t>(shape_.vocab));
    EXPECT_TRUE(transformer_.logits(hidden.row_range(n - 1, n), {logits.data(), 1, logits.size()}).ok());
    return logits;
  }

 private:
  void run_layer(int layer, MatView<float> x, const std::vector<std::int32_t>& positions,
                 const std::vector<std::set<int>>& visible) {
    const LayerShape& s = shape_.layers[static_cast<std::size_t>(layer)];
    const std::size_t n = positions.size();
    const auto wide = static_cast<std::size_t>(s.heads * s.head_dim);
    const auto narrow = static_cast<std::size_t>(s.kv_heads * s.head_dim);
    std::vector<float> q(n * wide), k(n * narrow), v(n * narrow), out(n * wide);
    LayerInputs inputs;
    inputs.q = {q.data(), n, wide};
    inputs.k = {k.data(), n, narrow};
    inputs.v = {v.data(), n, narrow};
    EXPECT_TRUE(transformer_.pre_attention(layer, Linear::kStored, x, positions, inputs).ok());
    Rows& keys = keys_[static_cast<std::size_t>(layer)];
    Rows& values = values_[static_cast<std::size_t>(layer)];
    const std::size_t before = keys.size();
    for (std::size_t t = 0; t < n; ++t) {
      keys.emplace_back(k.begin() + static_cast<std::ptrdiff_t>(t * narrow),
                        k.begin() + static_cast<std::ptrdiff_t>((t + 1) * narrow));
      values.emplace_back(v.begin() + static_cast<std::ptrdiff_t>(t * narrow),
                          v.begin() + static_cast<std::ptrdiff_t>((t + 1) * narrow));
    }
    for (std::size_t t = 0; t < n; ++t) {
      for (int head = 0; head < s.heads; ++head) {
        attend(s, head, before, before + t, visible[static_cast<std::size_t>(head / s.group())], keys, values,
               q.data() + t * wide + static_cast<std::size_t>(head * s.head_dim),
               out.data() + t * wide + static_cast<std::size_t>(head * s.head_dim));
      }
    }
    EXPECT_TRUE(transformer_.post_attention(layer, Linear::kStored, {out.data(), n, wide}, x).ok());
  }

  static void attend(const LayerShape& s, int head, std::size_t before, std::size_t self, const std::set<int>& visible,
                     const Rows& keys, const Rows& values, const float* q, float* out) {
    const auto d = static_cast<std::size_t>(s.head_dim);
    const std::size_t at = static_cast<std::size_t>(head / s.group()) * d;
    std::vector<double> weight(self + 1, 0.0);
    double sum = 0;
    for (std::size_t t = 0; t <= self; ++t) {
      if (t < before && !visible.contains(static_cast<int>(t))) continue;
      double dot = 0;
      for (std::size_t c = 0; c < d; ++c) dot += static_cast<double>(q[c]) * static_cast<double>(keys[t][at + c]);
      weight[t] = std::exp(dot / std::sqrt(static_cast<double>(d)));
      sum += weight[t];
    }
    for (std::size_t c = 0; c < d; ++c) {
      double value = 0;
      for (std::size_t t = 0; t <= self; ++t) value += weight[t] * static_cast<double>(values[t][at + c]);
      out[c] = static_cast<float>(value / sum);
    }
  }

  Transformer& transformer_;
  const ModelShape& shape_;
  std::vector<Rows> keys_, values_;  // per layer
};

std::vector<std::vector<std::set<int>>> kept_positions(const SequenceCache& cache, const ModelShape& shape) {
  std::vector<std::vector<std::set<int>>> kept(shape.layers.size());
  for (int layer = 0; layer < shape.layer_count(); ++layer) {
    for (int head = 0; head < shape.layers[static_cast<std::size_t>(layer)].kv_heads; ++head) {
      const std::vector<std::int32_t> positions = cache.positions(layer, head);
      kept[static_cast<std::size_t>(layer)].emplace_back(positions.begin(), positions.end());
    }
  }
  return kept;
}

std::vector<std::int32_t> random_tokens(int count, int vocab, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return tokens;
}

std::vector<float> prefill(Transformer& transformer, SequenceCache& cache, const std::vector<std::int32_t>& tokens) {
  Prefill::Options options;
  options.chunk = 50;
  SequenceCache* caches[] = {&cache};
  Result<Prefill> machine = Prefill::start(transformer, tokens, caches, options);
  EXPECT_TRUE(machine.ok()) << machine.status().message();
  while (!machine->done()) EXPECT_TRUE(machine->step().ok());
  std::vector<float> logits(static_cast<std::size_t>(transformer.shape().vocab));
  EXPECT_TRUE(transformer.logits(machine->hidden(), {logits.data(), 1, logits.size()}).ok());
  return logits;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, const std::string& where) {
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  const double bound = 1e-5 * (static_cast<double>(*high) - static_cast<double>(*low));
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], bound) << where << " logit " << i;
}

struct MaskedCase {
  std::string spec;
  int rows_after_prompt;  // of 130; of the first layer's first head
};

class MaskedOracle : public ::testing::TestWithParam<MaskedCase> {};

TEST_P(MaskedOracle, EvictionEqualsMasking) {
  TinyModelOptions model;
  model.heads = 6;
  model.kv_heads = 2;
  model.hidden = 96;
  model.layers = 3;
  const std::string path = ::testing::TempDir() + "kvartet_masked_" + std::to_string(getpid()) + "_" +
                           std::to_string(std::hash<std::string>()(GetParam().spec)) + ".gguf";
  ASSERT_TRUE(write_tiny_model(path, model).ok());
  Result<std::unique_ptr<Transformer>> loaded = Transformer::load(path, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Transformer& transformer = **loaded;
  const ModelShape& shape = transformer.shape();
  Result<CacheSpec> spec = parse_spec(GetParam().spec);
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  Result<SequenceCache> made = SequenceCache::create(*spec, shape, Arena::create());
  ASSERT_TRUE(made.ok());
  SequenceCache& cache = *made;
  MaskedReference reference(transformer);

  const std::vector<std::int32_t> prompt = random_tokens(130, shape.vocab, 1);
  const std::vector<std::vector<std::set<int>>> nothing = kept_positions(cache, shape);
  expect_near(prefill(transformer, cache, prompt), reference.run(prompt, nothing), "first prompt");
  if (GetParam().rows_after_prompt > 0) {
    EXPECT_EQ(cache.rows(0, 0), GetParam().rows_after_prompt);
  }
  EXPECT_EQ(cache.next_position(), 130);

  const std::vector<std::int32_t> question = random_tokens(17, shape.vocab, 2);
  const std::vector<std::vector<std::set<int>>> sealed = kept_positions(cache, shape);
  expect_near(prefill(transformer, cache, question), reference.run(question, sealed), "second prompt");
  EXPECT_EQ(cache.next_position(), 147);

  DecodeStep step(transformer, 1);
  std::vector<float> logits(static_cast<std::size_t>(shape.vocab));
  const std::vector<std::int32_t> answer = random_tokens(120, shape.vocab, 3);
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const DecodeItem item{answer[i], &cache, logits};
    const std::vector<std::vector<std::set<int>>> before = kept_positions(cache, shape);
    ASSERT_TRUE(step.run({&item, 1}).ok());
    // Rows leave before a step's attention, or by its weights after it.
    const std::vector<std::vector<std::set<int>>> seen = spec->drops_after_steps() ? before : kept_positions(cache, shape);
    expect_near(logits, reference.run({answer[i]}, seen), "step " + std::to_string(i));
    ASSERT_TRUE(cache.check_integrity().ok()) << cache.check_integrity().message();
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Caches, MaskedOracle,
                         ::testing::Values(MaskedCase{"f32", 130}, MaskedCase{"streamingllm:sinks=4,window=32+f32", 36},
                                           MaskedCase{"snapkv:budget=40,window=8,kernel=5+f32", 40},
                                           MaskedCase{"snapkv:budget=0.5,window=8,kernel=5,pool=avg+f32", 65},
                                           MaskedCase{"h2o:budget=40+f32", 40}, MaskedCase{"h2o:budget=0.25,recent=0.2+f32", 33},
                                           MaskedCase{"tova:budget=40+f32", 40},
                                           MaskedCase{"pyramidkv:budget=40,window=8+f32", 2 * 32 - 1 + 8},
                                           MaskedCase{"adakv:budget=40,window=8+f32", 0},
                                           MaskedCase{"cam:target=40,merge=0+f32", 40},
                                           MaskedCase{"cam:target=40,merge=0,base=h2o,interval=7+f32", 40},
                                           MaskedCase{"cam:target=40,merge=0,base=tova+f32", 40},
                                           MaskedCase{"cam:target=40,merge=0,base=snapkv,interval=7,window=5+f32", 40}));

}  // namespace
}  // namespace kvartet
