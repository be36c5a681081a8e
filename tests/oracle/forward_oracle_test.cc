// The whole forward pass with our own attention and caches against libllama in the same process (DESIGN 7, first row):
// same GGUF, f32 KV, flash attention off.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/rng.h"
#include "engine/log_softmax.h"
#include "model/bf16_copy.h"
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

std::unique_ptr<Transformer> open_transformer(const std::string& path, const LoadOptions& options = {.threads = 1}) {
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

// One prompt on whatever `cache` holds; `logits` [tokens, vocab] is written.
void run_prompt(Transformer& transformer, SequenceCache& cache, std::span<const std::int32_t> tokens, int chunk, float* logits) {
  Prefill::Options options;
  options.threads = 1;
  options.chunk = chunk;
  options.keep_hidden = true;
  SequenceCache* caches[] = {&cache};
  Result<Prefill> prefill = Prefill::start(transformer, tokens, caches, options);
  ASSERT_TRUE(prefill.ok()) << prefill.status().message();
  while (!prefill->done()) {
    const Status status = prefill->step();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const auto vocab = static_cast<std::size_t>(transformer.shape().vocab);
  ASSERT_TRUE(transformer.logits(prefill->hidden(), {logits, tokens.size(), vocab}).ok());
}

// Prompts that end at `ends`, one on top of the other, then decoding of the rest; logits of every position, [tokens, vocab].
std::vector<float> our_logits_in_prompts(Transformer& transformer, SequenceCache& cache, const std::vector<std::int32_t>& tokens,
                                         const std::vector<std::size_t>& ends, int chunk = 64) {
  const auto vocab = static_cast<std::size_t>(transformer.shape().vocab);
  std::vector<float> logits(tokens.size() * vocab);
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    run_prompt(transformer, cache, std::span(tokens).subspan(begin, end - begin), chunk, logits.data() + begin * vocab);
    begin = end;
  }
  DecodeStep step(transformer, 1);
  for (std::size_t i = begin; i < tokens.size(); ++i) {
    const DecodeItem item{tokens[i], &cache, std::span(logits).subspan(i * vocab, vocab)};
    const Status status = step.run({&item, 1});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return logits;
}

// Prefills the first `prompt` tokens into `cache`, decodes the rest; logits of every position, [tokens, vocab].
std::vector<float> our_logits(Transformer& transformer, SequenceCache& cache, const std::vector<std::int32_t>& tokens,
                              std::size_t prompt, int chunk) {
  return our_logits_in_prompts(transformer, cache, tokens, {prompt}, chunk);
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
  int window = 0;  // in layers 0, 2, ... of four
  int head_dim = 16;
};

class TinyModels : public ::testing::TestWithParam<TinyCase> {};

// Tiny random F32 models, group sizes 1, 3 and 4: within 1e-3 of the logit range, at prefill and at decode, windows passed
// in both.
TEST_P(TinyModels, LogitsEqualLibllama) {
  TinyModelOptions options;
  options.architecture = GetParam().architecture;
  options.heads = GetParam().heads;
  options.kv_heads = GetParam().kv_heads;
  options.head_dim = GetParam().head_dim;
  options.hidden = options.heads * options.head_dim;  // libllama takes qwen2's head_dim from here
  options.seed = 5;
  if (GetParam().window > 0) {
    options.layers = 4;
    options.window = GetParam().window;
    options.window_period = 2;
    options.rope_base = 1e6;
  }
  const std::string path = ::testing::TempDir() + "kvartet_tiny_" + std::to_string(getpid()) + options.architecture +
                           std::to_string(options.heads / options.kv_heads) + "_" + std::to_string(options.window) + ".gguf";
  ASSERT_TRUE(write_tiny_model(path, options).ok());
  const std::unique_ptr<Transformer> transformer = open_transformer(path);
  ASSERT_NE(transformer, nullptr);
  const std::vector<std::int32_t> tokens = random_tokens(150, transformer->shape().vocab, 9);
  const std::vector<float> expected = oracle_logits(path, tokens);
  SequenceCache cache = make_cache(*transformer, "f32");
  const std::vector<float> got = our_logits(*transformer, cache, tokens, 120, 64);
  EXPECT_LE(largest_difference(got, expected), 1e-3 * range(expected)) << "range " << range(expected);
  // The same tokens in three prompts on one cache: later rows reach into what the earlier ones sealed.
  SequenceCache extended = make_cache(*transformer, "f32");
  const std::vector<float> pieces = our_logits_in_prompts(*transformer, extended, tokens, {50, 55, 120});
  EXPECT_LE(largest_difference(pieces, expected), 1e-3 * range(expected)) << "range " << range(expected);
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Oracle, TinyModels,
                         ::testing::Values(TinyCase{"llama", 4, 4}, TinyCase{"llama", 6, 2}, TinyCase{"llama", 8, 2},
                                           TinyCase{"qwen2", 4, 2}, TinyCase{"qwen2", 6, 2}, TinyCase{"qwen3", 4, 2},
                                           TinyCase{"qwen3moe", 6, 2}, TinyCase{"gemma3", 4, 1}, TinyCase{"gemma3", 4, 1, 40},
                                           TinyCase{"gemma3", 6, 2, 7}, TinyCase{"gemma3", 4, 4, 130}),
                         [](const auto& info) {
                           return info.param.architecture + "_group" + std::to_string(info.param.heads / info.param.kv_heads) +
                                  (info.param.window > 0 ? "_window" + std::to_string(info.param.window) : "");
                         });

// user-needs C14: the groups of query heads that models have, with the exact cache. tests/e2e holds the other cache types to it.
INSTANTIATE_TEST_SUITE_P(C14Groups, TinyModels,
                         ::testing::Values(TinyCase{"llama", 4, 4, 0, 32}, TinyCase{"llama", 9, 3, 0, 32},
                                           TinyCase{"qwen2", 14, 2, 0, 32}, TinyCase{"llama", 16, 2, 0, 32}),
                         [](const auto& info) {
                           return std::to_string(info.param.heads) + "_" + std::to_string(info.param.kv_heads);
                         });

// A Mistral with a window in every layer. libllama reads the key for other architectures only, so the window is enforced on
// its side by forgetting, before every token, what lies too far back.
TEST(Mistral, SlidingWindowEqualsLibllamaThatForgets) {
  constexpr int kWindow = 24;
  const std::string path = ::testing::TempDir() + "kvartet_tiny_" + std::to_string(getpid()) + "_mistral.gguf";
  TinyModelOptions options;
  options.layers = 3;
  options.window = kWindow;
  options.seed = 8;
  ASSERT_TRUE(write_tiny_model(path, options).ok());
  const std::unique_ptr<Transformer> transformer = open_transformer(path);
  ASSERT_NE(transformer, nullptr);
  for (const LayerShape& layer : transformer->shape().layers) EXPECT_EQ(layer.window, kWindow);
  const std::vector<std::int32_t> tokens = random_tokens(110, transformer->shape().vocab, 10);

  Result<std::unique_ptr<PeerLlama>> peer = PeerLlama::open(path, {.threads = 1, .repack = PeerRepack::kOff});
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  auto session = (*peer)->session({.cache = PeerCache::kF32, .context = 128});
  ASSERT_TRUE(session.ok()) << session.status().message();
  std::vector<float> expected;
  for (int i = 0; i < std::ssize(tokens); ++i) {
    ASSERT_TRUE((*session)->forget_before(std::max(0, i - kWindow + 1)).ok());
    ASSERT_TRUE((*session)->decode(tokens[static_cast<std::size_t>(i)]).ok());
    const std::span<const float> row = (*session)->logits();
    expected.insert(expected.end(), row.begin(), row.end());
  }

  SequenceCache cache = make_cache(*transformer, "f32");
  const std::vector<float> got = our_logits(*transformer, cache, tokens, 70, 32);
  EXPECT_LE(largest_difference(got, expected), 1e-3 * range(expected)) << "range " << range(expected);
  SequenceCache extended = make_cache(*transformer, "f32");
  const std::vector<float> pieces = our_logits_in_prompts(*transformer, extended, tokens, {30, 35, 80});
  EXPECT_LE(largest_difference(pieces, expected), 1e-3 * range(expected)) << "range " << range(expected);
  // And it matters: without the window the logits are others.
  EXPECT_GT(largest_difference(oracle_logits(path, tokens), expected), 0.05 * range(expected));
  std::filesystem::remove(path);
}

// ---- the real model, where it is

// "": not there. KVARTET_MODEL names a file for SmolLM2, KVARTET_MODELS another folder for all.
std::string real_model(const std::string& name) {
  if (const char* file = std::getenv("KVARTET_MODEL"); file != nullptr && name == "smollm2") return file;
  const char* folder = std::getenv("KVARTET_MODELS");
  for (const std::string& place : {std::string(folder == nullptr ? "" : folder), std::string(KVARTET_SOURCE_DIR) + "/models"}) {
    const std::string path = place + "/" + name + ".gguf";
    if (std::filesystem::exists(path)) return path;
  }
  return "";
}

class RealModel : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Oracle, RealModel, ::testing::Values("smollm2", "gemma3-270m"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

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
TEST_P(RealModel, IsAsCloseToLibllamaAsItsOwnAttentionPathsAreToEachOther) {
  const std::string path = real_model(GetParam());
  if (path.empty()) GTEST_SKIP() << "no models/" << GetParam() << ".gguf; make setup or make models puts it there";
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
  std::printf("as stored: KL %.2e, top-1 %.3f; libllama's flash attention on/off: KL %.2e, top-1 %.3f (%zu tokens)\n", got.kl,
              got.top1_equal, own.kl, own.top1_equal, tokens.size());
  EXPECT_LE(got.kl, 1.5 * own.kl);
  EXPECT_GE(got.top1_equal, own.top1_equal - 0.04);  // 145 positions: 0.02 is one standard error
}

// About `count` tokens of the essays that set-up fetched; empty: they are not there.
std::vector<std::int32_t> haystack_tokens(const std::string& path, std::size_t count) {
  const std::filesystem::path folder = std::filesystem::path(KVARTET_SOURCE_DIR) / "models" / "haystack";
  if (!std::filesystem::exists(folder)) return {};
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.insert(entry.path());
  std::string text;
  for (const std::filesystem::path& file : files) {
    if (text.size() > 8 * count) break;
    if (file.extension() == ".txt") text += *FileSystem::real().read_file(file.string());
  }
  Result<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::load(path);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  Result<std::vector<Token>> tokens = (*vocabulary)->tokenize(text.substr(0, 8 * count));
  EXPECT_TRUE(tokens.ok());
  if ((*vocabulary)->adds_bos()) tokens->insert(tokens->begin(), (*vocabulary)->bos());
  tokens->resize(std::min(tokens->size(), count));
  return std::move(tokens).value();
}

// DESIGN 7, first row: the real model with BF16 weights on both sides. Slow: about two minutes.
TEST_P(RealModel, Bf16CopyIsAsLibllamaComputesIt) {
  constexpr std::size_t kTokens = 1000;
  constexpr std::size_t kPrompt = 900;  // beyond Gemma's window of 512; the rest is decoded
  if (std::getenv("KVARTET_SLOW") == nullptr) GTEST_SKIP() << "slow; KVARTET_SLOW=1 runs it";
  const std::string path = real_model(GetParam());
  if (path.empty()) GTEST_SKIP() << "no models/" << GetParam() << ".gguf; make setup or make models puts it there";
  const std::vector<std::int32_t> tokens = haystack_tokens(path, kTokens);
  if (tokens.size() < kTokens) GTEST_SKIP() << "no essays in models/haystack; make setup puts them there";
  const std::string copy = ::testing::TempDir() + "kvartet_bf16_" + std::to_string(getpid()) + GetParam() + ".gguf";
  const Status written = write_bf16_copy(path, copy);
  ASSERT_TRUE(written.ok()) << written.message();
  const std::vector<float> expected = oracle_logits(copy, tokens);
  std::filesystem::remove(copy);
  const std::unique_ptr<Transformer> transformer = open_transformer(path, {.threads = 1, .bf16_copy = true});
  ASSERT_NE(transformer, nullptr);
  SequenceCache cache = make_cache(*transformer, "f32");
  const std::vector<float> ours = our_logits(*transformer, cache, tokens, kPrompt, 512);
  const Distance got = distance(expected, ours, static_cast<std::size_t>(transformer->shape().vocab));
  std::printf("BF16 copy: KL %.2e, top-1 %.4f (%zu tokens)\n", got.kl, got.top1_equal, tokens.size());
  EXPECT_LE(got.kl, 5e-4);
  EXPECT_GE(got.top1_equal, 0.985);
}

}  // namespace
}  // namespace kvartet
