// Options that all quantizers take: center=mean (compression.md 12.4), keep= (section 8), and formats that learn from the first
// rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cache/cache_fixture.h"
#include "core/rope_table.h"

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

// What the keys of head 0 lose in a cache, per channel: the mean squared difference to the f32 reference.
std::vector<double> key_errors(const std::string& spec, const TokenRows& rows) {
  FedCache exact = fed_cache("f32", Arena::create(), small_shape(), &rows);
  FedCache fed = fed_cache(spec, Arena::create(), small_shape(), &rows);
  expect_ok(exact.prompt(320));
  expect_ok(fed.prompt(320));
  const HeadView& view = fed.cache.views(0)[0];
  const std::vector<float> keys = read_rows(view.keys);
  const std::vector<float> exact_keys = read_rows(exact.cache.views(0)[0].keys);
  std::vector<double> errors(kDim, 0.0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const float mean = view.key_mean == nullptr ? 0.0F : view.key_mean[i % kDim];
    errors[i % kDim] += std::pow(static_cast<double>(keys[i] + mean) - static_cast<double>(exact_keys[i]), 2) / 320;
  }
  return errors;
}

double error_of(const std::string& spec, const TokenRows& rows) {
  const std::vector<double> errors = key_errors(spec, rows);
  return std::accumulate(errors.begin(), errors.end(), 0.0) / kDim;
}

// T14, 12.4: +200 in four key channels ruins q4_0, whose blocks span the channels; without the mean it is as good as on
// keys without the bias.
TEST(CenteredKeys, T14BiasedKeysSurviveFourBits) {
  const TokenRows plain(400, 31);
  const TokenRows biased = biased_rows(400, 200.0F);
  const double without_bias = error_of("q4_0", plain);
  EXPECT_GT(error_of("q4_0", biased), 50 * without_bias);
  EXPECT_LT(error_of("q4_0:center=mean", biased), 1.5 * without_bias);
  EXPECT_LT(error_of("turboquant:center=mean", biased), error_of("turboquant", biased) / 50);
  EXPECT_LT(error_of("q8_0", biased), error_of("q4_0", biased) / 10);  // 12.4: more bits for keys
  // Per-channel groups need no help: KIVI-2 loses only the f16 rounding of its zero points.
  EXPECT_LT(error_of("kivi:bits=2,residual=32", biased), 1.05 * error_of("kivi:bits=2,residual=32", plain) + 0.01);
}

// Keys with a bias that was added before RoPE, as in Qwen2 (norm 500): on one pair of channels, which turns with the position.
TokenRows turned_bias(int pair) {
  RopeShape rope;
  rope.dims = kDim;
  rope.base = 1e6;
  rope.layout = RopeLayout::kHalves;
  const RopeTable table = RopeTable::create(rope, 400, *Arena::create()).value();
  TokenRows rows(400, 31);
  for (int t = 0; t < 400; ++t) {
    std::vector<float> bias(kDim, 0.0F);
    bias[static_cast<std::size_t>(pair)] = 400.0F;
    bias[static_cast<std::size_t>(pair + kDim / 2)] = 300.0F;
    table.rotate(bias.data(), t);
    for (std::size_t h = 0; h < kKvHeads; ++h) {
      for (std::size_t c = 0; c < kDim; ++c) rows.keys[(static_cast<std::size_t>(t) * kKvHeads + h) * kDim + c] += bias[c];
    }
  }
  return rows;
}

// 12.4: after RoPE only channels that turn slowly keep a stable mean. There it repairs rows of four bits; where the bias turns by
// a radian a token, it does not. Per-channel groups leave the other channels alone in either case, to the bit.
TEST(CenteredKeys, Section124TheMeanRepairsChannelsThatTurnSlowly) {
  const TokenRows plain(400, 31);
  const TokenRows slow = turned_bias(kDim / 2 - 1);
  const TokenRows fast = turned_bias(0);
  const double without_bias = error_of("q4_0", plain);
  EXPECT_GT(error_of("q4_0", slow), 50 * without_bias);
  EXPECT_GT(error_of("q4_0", fast), 50 * without_bias);
  EXPECT_LT(error_of("q4_0:center=mean", slow), 1.5 * without_bias);
  EXPECT_GT(error_of("q4_0:center=mean", fast), 50 * without_bias);
  const std::string kivi = "kivi:bits=2,residual=32";
  EXPECT_LT(error_of(kivi, slow), 1.05 * error_of(kivi, plain) + 0.03);  // f16 holds 400 in steps of a quarter
  const std::vector<double> unbiased = key_errors(kivi, plain);
  const std::vector<double> turning = key_errors(kivi, fast);
  for (std::size_t c = 0; c < kDim; ++c) {
    if (c % (kDim / 2) != 0) {
      EXPECT_EQ(turning[c], unbiased[c]) << c;
    }
  }
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
