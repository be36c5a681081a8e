// Which rows stay and what attention over them gives: T2, T3, T5, T6, T15, C19, sections 4.5 and 6.1 at the cache's level.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cache/cache_fixture.h"
#include "evict/snapkv.h"
#include "evict/streaming.h"

namespace kvartet {
namespace {

using namespace test;

// Every row of the view is the row that came with its position.
void expect_rows_of_positions(const FedCache& fed, int head) {
  const HeadView& view = fed.cache.views(0)[static_cast<std::size_t>(head)];
  const std::vector<float> keys = read_rows(view.keys);
  const std::vector<float> values = read_rows(view.values);
  const std::vector<std::int32_t> positions = fed.cache.positions(0, head);
  ASSERT_EQ(positions.size(), static_cast<std::size_t>(view.rows));
  for (std::size_t row = 0; row < positions.size(); ++row) {
    ASSERT_TRUE(std::equal(keys.begin() + static_cast<std::ptrdiff_t>(row * kDim),
                           keys.begin() + static_cast<std::ptrdiff_t>((row + 1) * kDim), fed.rows->key(positions[row], head)));
    ASSERT_TRUE(std::equal(values.begin() + static_cast<std::ptrdiff_t>(row * kDim),
                           values.begin() + static_cast<std::ptrdiff_t>((row + 1) * kDim),
                           fed.rows->value(positions[row], head)));
  }
}

std::vector<std::int32_t> sorted(std::vector<std::int32_t> rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

// T2, R5, DESIGN 4: a cache that has not acted has exactly full's tiles, borders and numbers.
TEST(Eviction, T2NoOpIsExactlyFull) {
  for (const auto& [spec, tokens, steps] : {std::tuple{"kivi:bits=2", 100, 27},
                                            {"kivi:bits=4,residual=256", 200, 55},
                                            {"snapkv:budget=300", 300, 0},
                                            {"snapkv:budget=300", 299, 64},
                                            {"snapkv:budget=0.25", 32, 5},
                                            {"snapkv:budget=500+kivi", 90, 30},
                                            {"streamingllm:window=296", 290, 10},
                                            {"streamingllm:budget=300", 300, 0}}) {
    FedCache full = fed_cache("full");
    FedCache fed = fed_cache(spec);
    for (FedCache* cache : {&full, &fed}) {
      expect_ok(cache->prompt(tokens));
      expect_ok(cache->steps(steps));
    }
    SCOPED_TRACE(spec);
    expect_same_views(full.cache, fed.cache);
    EXPECT_FALSE(fed.cache.acted());
    EXPECT_EQ(fed.cache.next_position(), tokens + steps);
    const auto count = static_cast<std::size_t>(tokens + steps);
    std::vector<std::int32_t> contiguous(count);
    std::iota(contiguous.begin(), contiguous.end(), 0);
    EXPECT_EQ(fed.cache.positions(0, 0), contiguous);
  }
}

// T15: when the gate says so, the method has run, and it shows in rows or bytes.
TEST(Eviction, T15NoSilentDisabling) {
  FedCache full = fed_cache("full");
  expect_ok(full.prompt(600));
  EXPECT_FALSE(full.cache.acted());
  FedCache f32 = fed_cache("f32");
  expect_ok(f32.prompt(600));
  EXPECT_FALSE(f32.cache.acted());
  for (const char* spec : {"q8_0", "kivi:bits=4", "kivi:bits=2", "full/kivi", "snapkv", "snapkv:budget=599", "snapkv+kivi",
                           "streamingllm:window=500", "streamingllm:budget=0.5+q8_0"}) {
    FedCache fed = fed_cache(spec);
    EXPECT_FALSE(fed.cache.acted()) << spec;
    expect_ok(fed.prompt(600));
    EXPECT_TRUE(fed.cache.acted()) << spec;
    EXPECT_TRUE(fed.cache.mean_rows() < 600 || fed.cache.bytes().live < full.cache.bytes().live) << spec;
  }
  FedCache streaming = fed_cache("streamingllm:window=500");
  expect_ok(streaming.prompt(504));
  EXPECT_FALSE(streaming.cache.acted());
  expect_ok(streaming.steps(1));
  EXPECT_TRUE(streaming.cache.acted());
  EXPECT_EQ(streaming.cache.mean_rows(), 504);
}

// 6.1: 20 tokens seen with S = 4, W = 8, by prompt or one by one; rows hold what their positions say, in f32 exactly.
TEST(Eviction, Section61Rows) {
  for (const int prompt : {0, 3, 12, 13, 20}) {
    FedCache fed = fed_cache("streamingllm:sinks=4,window=8+f32");
    if (prompt > 0) expect_ok(fed.prompt(prompt));
    expect_ok(fed.steps(20 - prompt));
    EXPECT_EQ(sorted(fed.cache.positions(0, 0)), (std::vector<std::int32_t>{0, 1, 2, 3, 12, 13, 14, 15, 16, 17, 18, 19}));
    for (int row = 0; row < 4; ++row) EXPECT_EQ(fed.cache.positions(0, 0)[static_cast<std::size_t>(row)], row);  // sinks first
    expect_rows_of_positions(fed, 0);
    expect_rows_of_positions(fed, 1);
    EXPECT_EQ(fed.cache.next_position(), 20);
  }
}

// 6.1, R4: the bound holds after the prompt, during each step's attention and after it; memory stays constant; the next
// position counts tokens, not rows (T6). Past the first, second and hundredth eviction, and through a second prompt.
TEST(Eviction, Section61BoundHoldsDuringAttention) {
  const StreamingOptions options{.sinks = 4, .window = 60};
  FedCache fed = fed_cache("streamingllm:window=60");
  expect_ok(fed.prompt(50));
  std::size_t full_bytes = 0;
  for (int seen = 51; seen <= 300; ++seen) {
    if (seen == 200) expect_ok(fed.prompt(37));
    seen = fed.cache.next_position() + 1;
    expect_ok(fed.append(0));
    EXPECT_EQ(fed.cache.rows(0, 1), streaming_rows(seen, options));
    EXPECT_EQ(sorted(fed.cache.positions(0, 1)), streaming_plan(seen, 1, options).rows.front());  // the new token is seen
    expect_ok(fed.settle(0));
    fed.cache.finish_step();
    EXPECT_EQ(fed.cache.next_position(), seen);
    EXPECT_EQ(fed.cache.rows(0, 0), streaming_rows(seen, options));
    if (seen == 64) full_bytes = fed.cache.bytes().allocated;
    if (seen > 64) {
      EXPECT_EQ(fed.cache.bytes().allocated, full_bytes);
    }
    expect_ok(fed.cache.check_integrity());
  }
}

// A second prompt longer than the window replaces all of it at once.
TEST(Eviction, Section61SecondPromptLongerThanTheWindow) {
  for (const int second : {1, 7, 8, 9, 200}) {
    FedCache fed = fed_cache("streamingllm:sinks=4,window=8+f32");
    expect_ok(fed.prompt(10));
    expect_ok(fed.prompt(second));
    EXPECT_EQ(sorted(fed.cache.positions(0, 1)), streaming_plan(10 + second, 1, {.sinks = 4, .window = 8}).rows.front());
    expect_rows_of_positions(fed, 1);
    expect_ok(fed.cache.check_integrity());
  }
}

// T5 at the cache's level: attention over the cache equals attention over all tokens with the evicted ones masked.
TEST(Eviction, T5EqualsFullWithMaskedRows) {
  FedCache streaming = fed_cache("streamingllm:window=28+f32");
  FedCache snap = fed_cache("snapkv:budget=48+f32");
  for (FedCache* fed : {&streaming, &snap}) {
    expect_ok(fed->prompt(100));
    for (int step = 0; step < 130; ++step) {
      expect_ok(fed->append(0));
      for (int head = 0; head < kKvHeads; ++head) {
        std::vector<float> keys;
        std::vector<float> values;
        for (const std::int32_t position : sorted(fed->cache.positions(0, head))) {
          keys.insert(keys.end(), fed->rows->key(position, head), fed->rows->key(position, head) + kDim);
          values.insert(values.end(), fed->rows->value(position, head), fed->rows->value(position, head) + kDim);
        }
        const std::vector<float> q = random_query(static_cast<std::uint64_t>(step));
        expect_close(attend(q, keys, values), attend_view(q, fed->cache.views(0)[static_cast<std::size_t>(head)]), 1e-12);
      }
      expect_ok(fed->settle(0));
      fed->cache.finish_step();
    }
    EXPECT_EQ(fed->cache.next_position(), 230);
  }
}

// T3: a budget of everything is full attention.
TEST(Eviction, T3FullBudgetIsFullAttention) {
  FedCache full = fed_cache("full");
  expect_ok(full.prompt(333));
  for (const char* spec :
       {"snapkv:budget=333", "snapkv:budget=100000", "streamingllm:budget=333", "streamingllm:window=100000"}) {
    FedCache fed = fed_cache(spec);
    expect_ok(fed.prompt(333));
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const std::vector<float> q = random_query(seed);
      expect_close(attend_view(q, full.cache.views(0)[1]), attend_view(q, fed.cache.views(0)[1]), 1e-6);
    }
  }
}

// 4.1, 4.2: the rows of the plan after the prompt, per head; later rows are appended with their true positions; a second
// prompt is appended and not re-scored.
TEST(Eviction, Section42SnapKvKeepsThePlanAndAppends) {
  FedCache fed = fed_cache("snapkv:budget=64,window=16+f32");
  expect_ok(fed.prompt(400, /*score_seed=*/9));
  const KeepPlan plan =
      snapkv_plan(random_scores(16, 400, 9), kKvHeads, {.capacity = 64, .window = 16, .kernel = 7, .pool = Pool::kMax});
  EXPECT_NE(plan.rows[0], plan.rows[1]);
  EXPECT_EQ(fed.cache.score_need().window, 0);
  expect_ok(fed.steps(3));
  expect_ok(fed.prompt(50));
  expect_ok(fed.steps(2));
  for (int head = 0; head < kKvHeads; ++head) {
    std::vector<std::int32_t> expected = plan.rows[static_cast<std::size_t>(head)];
    ASSERT_EQ(expected.size(), 64U);
    for (int position = 400; position < 455; ++position) expected.push_back(position);
    EXPECT_EQ(fed.cache.positions(0, head), expected);
    expect_rows_of_positions(fed, head);
  }
  EXPECT_EQ(fed.cache.next_position(), 455);
  EXPECT_EQ(fed.cache.mean_rows(), 64 + 55);
  expect_ok(fed.cache.check_integrity());
}

// Section 8: survivors are quantized as rows: the same as a KIVI cache that was given only them.
TEST(Eviction, Section8EvictThenQuantize) {
  FedCache fed = fed_cache("snapkv:budget=100+kivi:bits=2,residual=32");
  expect_ok(fed.prompt(500));
  const TokenRows survivors = surviving_rows(fed, 1);
  FedCache plain = fed_cache("kivi:bits=2,residual=32", Arena::create(), small_shape(), &survivors);
  expect_ok(plain.prompt(100));
  expect_same_side(fed.cache.views(0)[1].keys, plain.cache.views(0)[1].keys);
  expect_same_side(fed.cache.views(0)[1].values, plain.cache.views(0)[1].values);
}

// 4.5: removing rows whose weight is exactly 0 changes nothing. Channel 0 carries the logit.
TEST(Eviction, Section45RowsWithoutWeightMayGo) {
  constexpr int kTokens = 300;
  constexpr int kWindow = 8;
  TokenRows rows(kTokens, 21);
  LayerScores scores{.heads = kHeads, .window_rows = kWindow, .tokens = kTokens, .window = {}, .column_sums = {}};
  const auto seen = [](int t) { return t % 17 == 3 || t >= kTokens - kWindow; };
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kKvHeads; ++h) rows.keys[static_cast<std::size_t>(t * kKvHeads + h) * kDim] = seen(t) ? 0.5F : -1e4F;
  }
  for (int i = 0; i < kHeads * kWindow; ++i) {
    for (int t = 0; t < kTokens; ++t) scores.window.push_back(seen(t) ? 0.01F : 0.0F);
  }
  FedCache fed = fed_cache("snapkv:budget=40,window=8,kernel=1", Arena::create(), small_shape(), &rows);
  FedCache full = fed_cache("full", Arena::create(), small_shape(), &rows);
  expect_ok(full.prompt(kTokens));
  expect_ok(fed.cache.seal_prompt(
      0, {.key = rows.key_rows(0, kTokens), .key_pre = {}, .value = rows.value_rows(0, kTokens), .scores = &scores}));
  EXPECT_EQ(fed.cache.rows(0, 0), 40);
  std::vector<float> q(kDim, 0.0F);
  q[0] = 8.0F;  // sqrt(kDim): the logit is channel 0
  for (std::size_t h = 0; h < kKvHeads; ++h)
    expect_close(attend_view(q, full.cache.views(0)[h]), attend_view(q, fed.cache.views(0)[h]), 1e-6);
}

// C19: budgets above, at and far below the prompt; a prompt shorter than the observation window.
TEST(Eviction, C19BudgetAgainstLength) {
  for (const char* spec :
       {"snapkv:budget=1", "streamingllm:budget=1", "snapkv:budget=2", "streamingllm:budget=0.0001", "snapkv:budget=1+q8_0"}) {
    FedCache fed = fed_cache(spec);
    expect_ok(fed.prompt(77));
    EXPECT_GE(fed.cache.rows(0, 0), 1) << spec;
    EXPECT_EQ(fed.cache.positions(0, 0).back() == 76 || fed.cache.positions(0, 0).front() == 76, true) << spec;
    expect_ok(fed.steps(3));
    for (const double x : attend_view(random_query(1), fed.cache.views(0)[0])) EXPECT_TRUE(std::isfinite(x)) << spec;
    expect_ok(fed.cache.check_integrity());
  }
  FedCache one = fed_cache("snapkv:budget=1");
  expect_ok(one.prompt(77));
  EXPECT_EQ(one.cache.positions(0, 0), (std::vector<std::int32_t>{76}));
  FedCache small = fed_cache("snapkv:budget=20,window=5");
  expect_ok(small.prompt(4));
  EXPECT_EQ(small.cache.rows(0, 0), 4);
}

// A method that must choose and got no scores says so instead of keeping anything.
TEST(Eviction, MissingScoresAreAnError) {
  FedCache fed = fed_cache("snapkv:budget=50");
  const Status status = fed.cache.seal_prompt(
      0, {.key = fed.rows->key_rows(0, 99), .key_pre = {}, .value = fed.rows->value_rows(0, 99), .scores = nullptr});
  EXPECT_EQ(status.code(), Code::kInternal);
}

}  // namespace
}  // namespace kvartet
