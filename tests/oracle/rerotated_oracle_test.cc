// streamingllm:rope=rerotate through whole models (compression.md 6.1 a, T6): equals a full cache of unrotated keys in which the
// dropped rows are left out and the others are rotated by their place among those that are left, the query by the last place.
//
// The reference shares the linear layers and nothing else: it rotates every key anew at every step, in the paper's words, where
// the cache turns only its first rows.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "core/rng.h"
#include "core/rope_table.h"
#include "model/forward.h"
#include "model/tiny_model.h"
#include "model/transformer.h"

namespace kvartet {
namespace {

constexpr int kMostPlaces = 400;

// All rows ever seen, keys before rotation.
class ByPlaceReference {
 public:
  explicit ByPlaceReference(Transformer& transformer)
      : transformer_(transformer),
        shape_(transformer.shape()),
        table_(RopeTable::create(shape_.rope, kMostPlaces, *Arena::create()).value()) {
    keys_.resize(shape_.layers.size());
    values_.resize(shape_.layers.size());
  }

  // `kept`: the positions before these tokens that they see, ascending, the same in every layer and head. Logits of the last.
  std::vector<float> run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& kept) {
    const std::size_t n = tokens.size();
    std::vector<std::int32_t> places(n);  // of the new tokens: behind what is kept
    std::iota(places.begin(), places.end(), static_cast<std::int32_t>(kept.size()));
    std::vector<float> x(n * static_cast<std::size_t>(shape_.hidden));
    const MatView<float> hidden(x.data(), n, static_cast<std::size_t>(shape_.hidden));
    EXPECT_TRUE(transformer_.embed(tokens, hidden).ok());
    for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer) run_layer(layer, hidden, places, kept);
    std::vector<float> logits(static_cast<std::size_t>(shape_.vocab));
    EXPECT_TRUE(transformer_.logits(hidden.row_range(n - 1, n), {logits.data(), 1, logits.size()}).ok());
    return logits;
  }

 private:
  void run_layer(std::size_t layer, MatView<float> x, const std::vector<std::int32_t>& places,
                 const std::vector<std::int32_t>& kept) {
    const LayerShape& s = shape_.layers[layer];
    const std::size_t n = places.size();
    const auto d = static_cast<std::size_t>(s.head_dim);
    const std::size_t wide = static_cast<std::size_t>(s.heads) * d;
    const std::size_t narrow = static_cast<std::size_t>(s.kv_heads) * d;
    std::vector<float> q(n * wide), k(n * narrow), k_pre(n * narrow), v(n * narrow), out(n * wide);
    LayerInputs inputs;
    inputs.q = {q.data(), n, wide};
    inputs.k = {k.data(), n, narrow};
    inputs.v = {v.data(), n, narrow};
    inputs.k_pre = {k_pre.data(), n, narrow};
    EXPECT_TRUE(transformer_.pre_attention(static_cast<int>(layer), Linear::kStored, x, places, inputs).ok());
    std::vector<float>& keys = keys_[layer];
    std::vector<float>& values = values_[layer];
    const std::size_t before = keys.size() / narrow;
    keys.insert(keys.end(), k_pre.begin(), k_pre.end());
    values.insert(values.end(), v.begin(), v.end());
    for (std::size_t t = 0; t < n; ++t) {
      std::vector<std::size_t> rows(kept.begin(), kept.end());
      for (std::size_t own = 0; own <= t; ++own) rows.push_back(before + own);
      for (std::size_t head = 0; head < static_cast<std::size_t>(s.heads); ++head) {
        const std::size_t at = head / static_cast<std::size_t>(s.group()) * d;
        attend(rows, keys, values, narrow, at, q.data() + t * wide + head * d, d, out.data() + t * wide + head * d);
      }
    }
    EXPECT_TRUE(transformer_.post_attention(static_cast<int>(layer), Linear::kStored, {out.data(), n, wide}, x).ok());
  }

  void attend(const std::vector<std::size_t>& rows, const std::vector<float>& keys, const std::vector<float>& values,
              std::size_t stride, std::size_t at, const float* q, std::size_t d, float* out) const {
    std::vector<double> weights;
    double sum = 0;
    for (std::size_t place = 0; place < rows.size(); ++place) {
      std::vector<float> key(keys.begin() + static_cast<std::ptrdiff_t>(rows[place] * stride + at),
                             keys.begin() + static_cast<std::ptrdiff_t>(rows[place] * stride + at + d));
      table_.rotate(key.data(), static_cast<int>(place));
      double dot = 0;
      for (std::size_t c = 0; c < d; ++c) dot += static_cast<double>(q[c]) * static_cast<double>(key[c]);
      sum += weights.emplace_back(std::exp(dot / std::sqrt(static_cast<double>(d))));
    }
    for (std::size_t c = 0; c < d; ++c) {
      double value = 0;
      for (std::size_t place = 0; place < rows.size(); ++place)
        value += weights[place] * static_cast<double>(values[rows[place] * stride + at + c]);
      out[c] = static_cast<float>(value / sum);
    }
  }

  Transformer& transformer_;
  const ModelShape& shape_;
  RopeTable table_;
  std::vector<std::vector<float>> keys_, values_;  // per layer, [tokens, kv_heads * head_dim]
};

std::vector<std::int32_t> random_tokens(int count, int vocab, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return tokens;
}

std::vector<std::int32_t> kept_before(const SequenceCache& cache, int position) {
  std::vector<std::int32_t> kept = cache.positions(0, 0);
  std::sort(kept.begin(), kept.end());
  std::erase_if(kept, [&](std::int32_t p) { return p >= position; });
  return kept;
}

std::vector<float> prefill(Transformer& transformer, SequenceCache& cache, const std::vector<std::int32_t>& tokens) {
  SequenceCache* caches[] = {&cache};
  Result<Prefill> machine = Prefill::start(transformer, tokens, caches, {.chunk = 50});
  EXPECT_TRUE(machine.ok()) << machine.status().message();
  while (!machine->done()) EXPECT_TRUE(machine->step().ok());
  std::vector<float> logits(static_cast<std::size_t>(transformer.shape().vocab));
  EXPECT_TRUE(transformer.logits(machine->hidden(), {logits.data(), 1, logits.size()}).ok());
  return logits;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, const std::string& where) {
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  const double bound = 2e-4 * (static_cast<double>(*high) - static_cast<double>(*low));  // angles of f32 differ by 1e-5
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], bound) << where << " logit " << i;
}

class RerotatedOracle : public ::testing::TestWithParam<const char*> {};

// Over a prompt, a second one on the sealed cache, and steps far beyond what the model was trained for.
TEST_P(RerotatedOracle, EqualsRotationByPlace) {
  TinyModelOptions model;
  model.architecture = GetParam();
  model.heads = 6;
  model.kv_heads = 2;
  model.hidden = 96;
  model.layers = 3;
  model.context = 140;
  const std::string path = ::testing::TempDir() + "kvartet_rerotated_" + std::to_string(getpid()) + GetParam() + ".gguf";
  ASSERT_TRUE(write_tiny_model(path, model).ok());
  Result<std::unique_ptr<Transformer>> loaded = Transformer::load(path, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  std::filesystem::remove(path);
  Transformer& transformer = **loaded;
  const CacheSpec spec = parse_spec("streamingllm:sinks=4,window=32,rope=rerotate+f32").value();
  SequenceCache cache = SequenceCache::create(spec, transformer.shape(), Arena::create()).value();
  ByPlaceReference reference(transformer);

  const std::vector<std::int32_t> prompt = random_tokens(130, transformer.shape().vocab, 1);
  expect_near(prefill(transformer, cache, prompt), reference.run(prompt, {}), "first prompt");
  EXPECT_EQ(cache.rows(0, 0), 36);
  const std::vector<std::int32_t> question = random_tokens(17, transformer.shape().vocab, 2);
  const std::vector<std::int32_t> sealed = kept_before(cache, 130);
  expect_near(prefill(transformer, cache, question), reference.run(question, sealed), "second prompt");

  DecodeStep step(transformer, 1);
  std::vector<float> logits(static_cast<std::size_t>(transformer.shape().vocab));
  const std::vector<std::int32_t> answer = random_tokens(200, transformer.shape().vocab, 3);
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const int position = cache.next_position();
    const DecodeItem item{answer[i], &cache, logits};
    ASSERT_TRUE(step.run({&item, 1}).ok());
    expect_near(logits, reference.run({answer[i]}, kept_before(cache, position)), "step " + std::to_string(i));
    ASSERT_TRUE(cache.check_integrity().ok()) << cache.check_integrity().message();
  }
  EXPECT_EQ(cache.next_position(), 347);
}

// Pairs of neighbours and pairs of halves.
INSTANTIATE_TEST_SUITE_P(Models, RerotatedOracle, ::testing::Values("llama", "qwen2"));

}  // namespace
}  // namespace kvartet
