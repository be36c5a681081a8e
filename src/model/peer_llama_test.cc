#include "model/peer_llama.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "model/test_models.h"

namespace kvartet {
namespace {

std::vector<std::int32_t> some_tokens(int count) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 37 + 11) % 256);
  return tokens;
}

std::unique_ptr<PeerLlama> open(const std::string& path) {
  auto peer = PeerLlama::open(path, {.threads = 1, .repack = PeerRepack::kOff});
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  return peer.ok() ? std::move(*peer) : nullptr;
}

TEST(PeerLlama, LogitsOfAllPositionsAgreeWithASession) {
  const auto peer = open(tiny_model_file({.weights = TinyWeights::kQ8_0}));
  ASSERT_NE(peer, nullptr);
  const auto tokens = some_tokens(600);  // more than one batch
  const PeerSessionOptions exact{.cache = PeerCache::kF32, .context = 700};
  const auto all = peer->logits(tokens, exact);
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_EQ(all->size(), 600U * 259U);
  auto session = peer->session(exact);
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE((*session)->prefill(std::span(tokens).first(599)).ok());
  EXPECT_EQ((*session)->depth(), 599);
  ASSERT_TRUE((*session)->decode(tokens[599]).ok());
  const auto last = (*session)->logits();
  ASSERT_EQ(last.size(), 259U);
  for (std::size_t i = 0; i < last.size(); ++i) ASSERT_NEAR(last[i], (*all)[599 * 259 + i], 0.05) << i;
}

TEST(PeerLlama, GenerateIsGreedy) {
  const auto peer = open(tiny_model_file({}));
  ASSERT_NE(peer, nullptr);
  const PeerSessionOptions exact{.cache = PeerCache::kF32, .context = 100};
  std::vector<std::int32_t> tokens = some_tokens(20);
  const auto generated = peer->generate(tokens, 6, exact);
  ASSERT_TRUE(generated.ok()) << generated.status().message();
  ASSERT_FALSE(generated->empty());
  for (const std::int32_t next : *generated) {
    const auto all = peer->logits(tokens, exact);
    const auto row = std::span(*all).last(259);
    EXPECT_EQ(next, std::max_element(row.begin(), row.end()) - row.begin());
    tokens.push_back(next);
  }
}

// Ctrl-C sets the flag while libllama computes, for minutes with a long prompt: the call itself has to come back.
TEST(PeerLlama, APrefillThatIsCancelledComesBackAndTheSessionCanBeRewound) {
  std::atomic<bool> cancel{false};
  const auto peer = PeerLlama::open(tiny_model_file({}), {.threads = 1, .repack = PeerRepack::kOff, .cancel = &cancel});
  ASSERT_TRUE(peer.ok());
  auto session = (*peer)->session({.cache = PeerCache::kF16, .context = 100});
  ASSERT_TRUE(session.ok());
  const auto tokens = some_tokens(20);
  ASSERT_TRUE((*session)->prefill(std::span(tokens).first(10)).ok());
  cancel = true;
  EXPECT_EQ((*session)->prefill(std::span(tokens).subspan(10)).code(), Code::kCancelled);
  EXPECT_EQ((*session)->decode(1).code(), Code::kCancelled);
  EXPECT_EQ((*session)->depth(), 10);
  cancel = false;
  ASSERT_TRUE((*session)->rewind(10).ok());
  ASSERT_TRUE((*session)->prefill(std::span(tokens).subspan(10)).ok());
  const std::vector<float> again((*session)->logits().begin(), (*session)->logits().end());

  auto other = (*peer)->session({.cache = PeerCache::kF16, .context = 100});
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE((*other)->prefill(std::span(tokens).first(10)).ok());
  ASSERT_TRUE((*other)->prefill(std::span(tokens).subspan(10)).ok());
  EXPECT_EQ(again, std::vector<float>((*other)->logits().begin(), (*other)->logits().end()));
}

TEST(PeerLlama, RewindAndTimes) {
  const auto peer = open(tiny_model_file({.heads = 2, .kv_heads = 1, .head_dim = 32}));
  ASSERT_NE(peer, nullptr);
  const auto tokens = some_tokens(50);
  for (const PeerCache cache : {PeerCache::kF16, PeerCache::kQ8_0, PeerCache::kQ4_0}) {
    auto session = peer->session({.cache = cache, .flash = FlashAttention::kOn, .context = 100});
    ASSERT_TRUE(session.ok()) << session.status().message();
    const auto prefill = time_prefill(**session, tokens);
    ASSERT_TRUE(prefill.ok()) << prefill.status().message();
    EXPECT_GT(*prefill, 0);
    const auto decode = time_decode(**session, 40, 5);
    ASSERT_TRUE(decode.ok()) << decode.status().message();
    EXPECT_GT(*decode, 0);
    EXPECT_EQ((*session)->depth(), 40);
  }
}

TEST(PeerLlama, RefusesWhatLibllamaDoesNotHave) {
  const auto peer = open(tiny_model_file({}));
  ASSERT_NE(peer, nullptr);
  const auto quantized = peer->session({.cache = PeerCache::kQ4_0, .flash = FlashAttention::kOff, .context = 100});
  ASSERT_FALSE(quantized.ok());
  EXPECT_EQ(quantized.status().message(), "llama.cpp has no q4_0 cache without flash attention");
  auto session = peer->session({.context = 256});
  ASSERT_TRUE(session.ok());
  EXPECT_EQ((*session)->decode(5000).code(), Code::kBadInput);
  EXPECT_EQ((*session)->prefill(some_tokens(300)).code(), Code::kExhausted);
  EXPECT_EQ(PeerLlama::open(test_file("nowhere.gguf"), {}).status().code(), Code::kBadInput);
}

}  // namespace
}  // namespace kvartet
