// Options that all quantizers take: center=mean (compression.md 12.4), keep= (section 8), and formats that learn from the first
// rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cache/cache_fixture.h"

namespace kvartet {
namespace {

using namespace test;

// Rows whose keys have a large constant in four channels (T14's biased keys).
TokenRows biased_rows(int tokens, float bias) {
  TokenRows rows(tokens, 31);
  for (std::size_t i = 0; i < rows.keys.size(); ++i) {
    if (i % kDim % 16 == 3) rows.keys[i] += bias;
  }
  return rows;
}

double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

// 12.4: q.(k - mu) shifts every logit of a query equally, so softmax attention is unchanged. The f32 reference shows it.
TEST(CenteredKeys, Section124LeavesAttentionUnchanged) {
  const TokenRows rows = biased_rows(400, 20.0F);
  FedCache exact = fed_cache("full", Arena::create(), small_shape(), &rows);
  FedCache centered = fed_cache("kivi:bits=8,center=mean", Arena::create(), small_shape(), &rows);
  for (FedCache* fed : {&exact, &centered}) {
    expect_ok(fed->prompt(300));
    expect_ok(fed->steps(50));
    expect_ok(fed->cache.check_integrity());
  }
  for (int head = 0; head < kKvHeads; ++head) {
    const HeadView& view = centered.cache.views(0)[static_cast<std::size_t>(head)];
    ASSERT_NE(view.key_mean, nullptr);
    EXPECT_GT(*std::max_element(view.key_mean, view.key_mean + kDim), 15.0F);
    const std::vector<float> q = random_query(7);
    const HeadView& plain = exact.cache.views(0)[static_cast<std::size_t>(head)];
    const std::vector<float> keys = read_rows(view.keys);
    const std::vector<float> exact_keys = read_rows(plain.keys);
    for (std::size_t i = 0; i < keys.size(); ++i) ASSERT_NEAR(keys[i] + view.key_mean[i % kDim], exact_keys[i], 0.03F);
    EXPECT_LT(worst_difference(attend(q, keys, read_rows(plain.values)), attend_view(q, plain)), 0.02);
  }
}

// T14, 12.4: +200 in four key channels ruins q4_0, whose blocks span the channels; without the mean it is as good as on
// keys without the bias.
TEST(CenteredKeys, T14BiasedKeysSurviveFourBits) {
  const auto error_of = [](const std::string& spec, const TokenRows& rows) {
    FedCache exact = fed_cache("f32", Arena::create(), small_shape(), &rows);
    FedCache fed = fed_cache(spec, Arena::create(), small_shape(), &rows);
    expect_ok(exact.prompt(300));
    expect_ok(fed.prompt(300));
    const HeadView& view = fed.cache.views(0)[0];
    std::vector<float> keys = read_rows(view.keys);
    for (std::size_t i = 0; i < keys.size() && view.key_mean != nullptr; ++i) keys[i] += view.key_mean[i % kDim];
    const std::vector<float> exact_keys = read_rows(exact.cache.views(0)[0].keys);
    double sum = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      sum += std::pow(static_cast<double>(keys[i]) - static_cast<double>(exact_keys[i]), 2);
    }
    return sum / static_cast<double>(keys.size());
  };
  const TokenRows plain(400, 31);
  const TokenRows biased = biased_rows(400, 200.0F);
  const double without_bias = error_of("q4_0", plain);
  EXPECT_GT(error_of("q4_0", biased), 50 * without_bias);
  EXPECT_LT(error_of("q4_0:center=mean", biased), 1.5 * without_bias);
  EXPECT_LT(error_of("turboquant:center=mean", biased), error_of("turboquant", biased) / 50);
  // Per-channel groups need no help: KIVI-2 loses only the f16 rounding of its zero points.
  EXPECT_LT(error_of("kivi:bits=2,residual=32", biased), 1.05 * error_of("kivi:bits=2,residual=32", plain) + 0.01);
}

// Section 8: layers left at f16 are those of `full`, to the bit; the others are quantized.
TEST(KeptLayers, Section8KeptLayersAreFull) {
  FedCache fed = fed_cache("q4_0:keep=0.2-3", Arena::create(), small_shape(5));
  FedCache full = fed_cache("full", Arena::create(), small_shape(5));
  for (FedCache* cache : {&fed, &full}) {
    expect_ok(cache->prompt(150));
    expect_ok(cache->steps(20));
  }
  expect_ok(fed.cache.check_integrity());
  for (const int layer : {0, 2, 3}) expect_same_views(fed.cache, full.cache, layer);
  for (const int layer : {1, 4}) EXPECT_EQ(fed.cache.views(layer)[0].keys[0].format->name, "q4_0");
  EXPECT_TRUE(fed.cache.acted());
}

// T15: every quantizer writes fewer bytes than f16 whenever it has rows to write.
TEST(Quantizers, T15TheyAct) {
  for (const std::string spec :
       {"q8_0", "q5_0", "q4_1", "q4_0", "q3_0:rotate=hadamard", "fp8", "kivi:bits=3", "turboquant", "turboquant:bits=2.5",
        "turboquant:variant=prod", "q8_0/q4_0", "turboquant:residual=128", "q4_0:rotate=hadamard"}) {
    FedCache fed = fed_cache(spec);
    expect_ok(fed.prompt(600));
    FedCache full = fed_cache("full");
    expect_ok(full.prompt(600));
    EXPECT_TRUE(fed.cache.acted()) << spec;
    EXPECT_LT(fed.cache.bytes().live, full.cache.bytes().live * 3 / 4) << spec;
  }
}

// R5: a residual window that holds everything leaves the cache as `full`.
TEST(Quantizers, R5NothingToSealIsFull) {
  FedCache fed = fed_cache("turboquant:residual=128");
  FedCache full = fed_cache("full");
  expect_ok(fed.prompt(100));
  expect_ok(full.prompt(100));
  expect_same_views(fed.cache, full.cache);
  EXPECT_FALSE(fed.cache.acted());
}

// turboquant's residual: all but the newest R rows are sealed, on both sides, row by row.
TEST(Quantizers, ResidualOfRowsSealsOneByOne) {
  FedCache fed = fed_cache("turboquant:bits=3,residual=40");
  expect_ok(fed.prompt(130));
  for (int total = 130; total < 140; ++total) {
    const HeadView& view = fed.cache.views(0)[1];
    EXPECT_EQ(rows_in_format(view.keys, "turboquant3"), total - 40);
    EXPECT_EQ(f16_rows(view.values), 40);
    expect_ok(fed.steps(1));
  }
}

// What is learned is fixed by the first rows and undone when they fail to arrive.
TEST(LearnedFormats, FirstRowsDecideAndFailuresForget) {
  const std::shared_ptr<Arena> arena = Arena::create();
  FedCache fed = fed_cache("fp8:scale=calibrated", arena);
  const std::size_t before = arena->allocated_bytes();
  arena->fail_nth_allocation(4);
  EXPECT_FALSE(fed.prompt(50).ok());
  EXPECT_EQ(arena->allocated_bytes(), before);

  FedCache once = fed_cache("fp8:scale=calibrated");
  expect_ok(once.prompt(50));
  FedCache more = once.fork();
  expect_ok(more.prompt(100));
  const std::vector<float> a = read_rows(once.cache.views(0)[0].keys);
  const std::vector<float> b = read_rows(more.cache.views(0)[0].keys);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
}

}  // namespace
}  // namespace kvartet
