// The whole forward pass with our own attention and caches against libllama in the same process (DESIGN 7, first row):
// same GGUF, f32 KV, flash attention off.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/rng.h"
#include "engine/log_softmax.h"
#include "model/forward.h"
#include "model/peer_llama.h"
#include "model/tiny_model.h"
#include "model/transformer.h"
#include "model/vocabulary.h"

namespace kvartet {
namespace {

std::vector<std::int32_t> random_tokens(int count, int vocab, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return tokens;
}

std::unique_ptr<Transformer> open_transformer(const std::string& path, int threads = 1) {
  LoadOptions options;
  options.threads = threads;
  Result<std::unique_ptr<Transformer>> t = Transformer::load(path, options);
  EXPECT_TRUE(t.ok()) << t.status().message();
  return t.ok() ? std::move(t).value() : nullptr;
}

SequenceCache make_cache(const Transformer& transformer, const std::string& spec) {
  Result<CacheSpec> parsed = parse_spec(spec);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  Result<SequenceCache> cache = SequenceCache::create(*parsed, transformer.shape(), Arena::create());
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  return std::move(cache).value();
}

// Prefills the first `prompt` tokens into `cache`, decodes the rest; logits of every position, [tokens, vocab].
std::vector<float> our_logits(Transformer& transformer, SequenceCache& cache, const std::vector<std::int32_t>& tokens,
                              std::size_t prompt, int chunk) {
  const auto vocab = static_cast<std::size_t>(transformer.shape().vocab);
  std::vector<float> logits(tokens.size() * vocab);
  Prefill::Options options;
  options.threads = 1;
  options.chunk = chunk;
  options.keep_hidden = true;
  SequenceCache* caches[] = {&cache};
  Result<Prefill> prefill = Prefill::start(transformer, std::span(tokens).first(prompt), caches, options);
  EXPECT_TRUE(prefill.ok()) << prefill.status().message();
  while (!prefill->done()) {
    const Status status = prefill->step();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_TRUE(transformer.logits(prefill->hidden(), {logits.data(), prompt, vocab}).ok());
  DecodeStep step(transformer, 1);
  for (std::size_t i = prompt; i < tokens.size(); ++i) {
    const DecodeItem item{tokens[i], &cache, std::span(logits).subspan(i * vocab, vocab)};
    const Status status = step.run({&item, 1});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return logits;
}

std::vector<float> oracle_logits(const std::string& path, const std::vector<std::int32_t>& tokens,
                                 FlashAttention flash = FlashAttention::kOff) {
  PeerOptions options;
  options.threads = 1;
  options.repack = PeerRepack::kOff;
  Result<std::unique_ptr<PeerLlama>> peer = PeerLlama::open(path, options);
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  PeerSessionOptions session;
  session.cache = PeerCache::kF32;
  session.flash = flash;
  session.context = static_cast<int>(tokens.size()) + 8;
  Result<std::vector<float>> logits = (*peer)->logits(tokens, session);
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  return std::move(logits).value();
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = difference;  // a NaN counts
  }
  return largest;
}

double range(const std::vector<float>& v) {
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  return static_cast<double>(*high) - static_cast<double>(*low);
}

struct TinyCase {
  std::string architecture;
  int heads;
  int kv_heads;
};

class TinyModels : public ::testing::TestWithParam<TinyCase> {};

// Tiny random F32 models, group sizes 1, 3 and 4: within 1e-3 of the logit range, at prefill and at decode.
TEST_P(TinyModels, LogitsEqualLibllama) {
  TinyModelOptions options;
  options.architecture = GetParam().architecture;
  options.heads = GetParam().heads;
  options.kv_heads = GetParam().kv_heads;
  options.hidden = options.heads * options.head_dim;  // libllama takes qwen2's head_dim from here
  options.seed = 5;
  const std::string path =
      ::testing::TempDir() + "kvartet_tiny_" + options.architecture + std::to_string(options.heads / options.kv_heads) + ".gguf";
  ASSERT_TRUE(write_tiny_model(path, options).ok());
  const std::unique_ptr<Transformer> transformer = open_transformer(path);
  ASSERT_NE(transformer, nullptr);
  const std::vector<std::int32_t> tokens = random_tokens(150, transformer->shape().vocab, 9);
  const std::vector<float> expected = oracle_logits(path, tokens);
  SequenceCache cache = make_cache(*transformer, "f32");
  const std::vector<float> got = our_logits(*transformer, cache, tokens, 120, 64);
  EXPECT_LE(largest_difference(got, expected), 1e-3 * range(expected)) << "range " << range(expected);
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Oracle, TinyModels,
                         ::testing::Values(TinyCase{"llama", 4, 4}, TinyCase{"llama", 6, 2}, TinyCase{"llama", 8, 2},
                                           TinyCase{"qwen2", 4, 2}, TinyCase{"qwen2", 6, 2}),
                         [](const auto& info) {
                           return info.param.architecture + "_group" + std::to_string(info.param.heads / info.param.kv_heads);
                         });

// ---- the real model, where it is

std::string real_model() {
  if (const char* path = std::getenv("KVARTET_MODEL")) return path;
  return std::string(KVARTET_SOURCE_DIR) + "/models/smollm2.gguf";
}

struct Distance {
  double kl = 0;          // mean over positions of KL(expected || got)
  double top1_equal = 0;  // share of positions
};

Distance distance(const std::vector<float>& expected, const std::vector<float>& got, std::size_t vocab) {
  Distance d;
  const std::size_t rows = expected.size() / vocab;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::span<const float> e = std::span(expected).subspan(r * vocab, vocab);
    const std::span<const float> g = std::span(got).subspan(r * vocab, vocab);
    const double e_norm = log_sum_exp(e);
    const double g_norm = log_sum_exp(g);
    for (std::size_t i = 0; i < vocab; ++i) {
      const double log_p = static_cast<double>(e[i]) - e_norm;
      d.kl += std::exp(log_p) * (log_p - (static_cast<double>(g[i]) - g_norm));
    }
    if (std::max_element(e.begin(), e.end()) - e.begin() == std::max_element(g.begin(), g.end()) - g.begin()) d.top1_equal += 1;
  }
  d.kl /= static_cast<double>(rows);
  d.top1_equal /= static_cast<double>(rows);
  return d;
}

const char* const kEssay =
    "The best way to come up with startup ideas is to look for problems, preferably problems you have yourself. The very best "
    "startup ideas tend to have three things in common: they are something the founders themselves want, that they themselves "
    "can build, and that few others realize are worth doing. People who have worked on something for years know where the work "
    "is dull and slow, and what they would pay for if somebody offered it. So when a friend tells you that a market is full, ask "
    "who in it is happy. In the spring of the year the river rises behind the mill, and the miller opens the gates one after the "
    "other, listening to the wheel until it turns as evenly as it did the year before.";

std::vector<std::int32_t> essay_tokens(const std::string& path) {
  Result<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::load(path);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  Result<std::vector<Token>> tokens = (*vocabulary)->tokenize(kEssay);
  EXPECT_TRUE(tokens.ok());
  return std::move(tokens).value();
}

// On low-bit weights rounding of activations makes any two orders of summation differ: we may be no further from libllama
// than 1.5 times the distance between its own two attention paths.
TEST(RealModel, IsAsCloseToLibllamaAsItsOwnAttentionPathsAreToEachOther) {
  const std::string path = real_model();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no model at " << path << "; make setup puts it there";
  const std::vector<std::int32_t> tokens = essay_tokens(path);
  const std::unique_ptr<Transformer> transformer = open_transformer(path);
  ASSERT_NE(transformer, nullptr);
  const auto vocab = static_cast<std::size_t>(transformer->shape().vocab);
  const std::vector<float> off = oracle_logits(path, tokens, FlashAttention::kOff);
  const std::vector<float> on = oracle_logits(path, tokens, FlashAttention::kOn);
  SequenceCache cache = make_cache(*transformer, "f32");
  const std::vector<float> ours = our_logits(*transformer, cache, tokens, 16, 512);  // few rows: stored weights, as libllama
  const Distance own = distance(off, on, vocab);
  const Distance got = distance(off, ours, vocab);
  RecordProperty("kl", std::to_string(got.kl));
  std::printf("Q4_1: KL %.2e, top-1 %.3f; libllama's flash attention on/off: KL %.2e, top-1 %.3f (%zu tokens)\n", got.kl,
              got.top1_equal, own.kl, own.top1_equal, tokens.size());
  EXPECT_LE(got.kl, 1.5 * own.kl);
  EXPECT_GE(got.top1_equal, own.top1_equal - 0.04);  // 145 positions: 0.02 is one standard error
}

}  // namespace
}  // namespace kvartet
