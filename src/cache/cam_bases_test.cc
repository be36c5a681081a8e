// cam over policies that keep scores (compression.md 5.3, 8): tova and snapkv, at the prompt and between decode steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cache/cache_fixture.h"
#include "evict/snapkv.h"

namespace kvartet {
namespace {

using namespace test;

std::vector<std::int32_t> sorted_positions(const FedCache& fed, int head) {
  std::vector<std::int32_t> positions = fed.cache.positions(0, head);
  std::sort(positions.begin(), positions.end());
  return positions;
}

// 5.4: without merging it is its base, bit for bit.
TEST(CamBases, Section54WithoutMergesIsTova) {
  for (const int prompt : {1, 47, 48, 200}) {
    FedCache cam = fed_cache("cam:target=48,merge=0,base=tova");
    FedCache tova = fed_cache("tova:budget=48");
    for (FedCache* fed : {&cam, &tova}) {
      expect_ok(fed->prompt(prompt));
      expect_ok(fed->steps(60));
    }
    expect_same_views(cam.cache, tova.cache);
    for (int head = 0; head < kKvHeads; ++head) EXPECT_EQ(cam.cache.positions(0, head), tova.cache.positions(0, head));
  }
}

TEST(CamBases, Section54WithoutMergesThePromptIsSnapKvs) {
  FedCache cam = fed_cache("cam:target=48,merge=0,base=snapkv,window=16,kernel=5,pool=avg");
  FedCache snap = fed_cache("snapkv:budget=48,window=16,kernel=5,pool=avg");
  for (FedCache* fed : {&cam, &snap}) expect_ok(fed->prompt(300));
  for (int head = 0; head < kKvHeads; ++head) EXPECT_EQ(sorted_positions(cam, head), sorted_positions(snap, head));
}

// The weights of a step as the fixture makes them, the mean over a head's group.
float step_weight(int token, int head, std::int32_t position) {
  const int group = kHeads / kKvHeads;
  float sum = 0;
  for (int query = head * group; query < (head + 1) * group; ++query) {
    const Rng rng(static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(query));
    sum += static_cast<float>(rng.at(static_cast<std::uint64_t>(position)) >> 44) * 0x1.0p-20F;
  }
  return sum / static_cast<float>(group);
}

// Between steps: a pass every `interval` steps, by the weights of its last min(window, interval) ones, pooled by position.
void expect_snapkv_passes(int interval, int window, int prompt) {
  SCOPED_TRACE(std::to_string(interval) + " " + std::to_string(window) + " " + std::to_string(prompt));
  constexpr int kTarget = 40;
  FedCache fed = fed_cache("cam:target=40,merge=0,base=snapkv,kernel=5,interval=" + std::to_string(interval) +
                           ",window=" + std::to_string(window));
  expect_ok(fed.prompt(prompt));
  std::vector<std::vector<std::int32_t>> held;
  for (int head = 0; head < kKvHeads; ++head) held.push_back(sorted_positions(fed, head));
  const int observed = std::min(interval, window);
  for (int step = 0; step < 90; ++step) {
    const int token = fed.cache.next_position();
    expect_ok(fed.steps(1));
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<std::int32_t>& positions = held[static_cast<std::size_t>(head)];
      positions.push_back(token);
      if (static_cast<int>(positions.size()) >= kTarget + interval) {
        std::vector<float> sums;
        for (const std::int32_t position : positions) {
          float sum = 0;
          for (int t = token - observed + 1; t <= token; ++t) sum += position <= t ? step_weight(t, head, position) : 0.0F;
          sums.push_back(sum);
        }
        const SnapKvOptions options = {.capacity = kTarget, .window = observed, .kernel = 5, .pool = Pool::kMax};
        std::vector<std::int32_t> kept;
        for (const std::int32_t row : snapkv_rows(sums, positions, token + 1, options))
          kept.push_back(positions[static_cast<std::size_t>(row)]);
        positions = kept;
      }
      ASSERT_EQ(sorted_positions(fed, head), positions) << "step " << step;
    }
    expect_ok(fed.cache.check_integrity());
    ASSERT_LT(fed.cache.rows(0, 0), kTarget + interval);
  }
}

TEST(CamBases, Section53SnapKvBetweenSteps) {
  for (const int prompt : {5, 39, 200}) {
    expect_snapkv_passes(32, 16, prompt);
    expect_snapkv_passes(7, 16, prompt);
    expect_snapkv_passes(1, 16, prompt);
    expect_snapkv_passes(10, 10, prompt);
  }
}

// 5.4: the sum of all values is kept where every draw says merge; keys are never touched.
TEST(CamBases, MergesKeepKeysAndAddValues) {
  for (const char* base : {"tova", "snapkv,window=8", "snapkv,window=8,pool=avg", "h2o"}) {
    SCOPED_TRACE(base);
    FedCache cam = fed_cache(std::string("cam:target=40,interval=5,base=") + base + "+f32");
    expect_ok(cam.prompt(150));
    expect_ok(cam.steps(40));
    expect_ok(cam.cache.check_integrity());
    double changed = 0;
    for (int head = 0; head < kKvHeads; ++head) {
      const TokenRows expected = surviving_rows(cam, head);
      const HeadView& view = cam.cache.views(0)[static_cast<std::size_t>(head)];
      const std::vector<float> keys = read_rows(view.keys);
      const std::vector<float> values = read_rows(view.values);
      for (int row = 0; row < view.rows; ++row) {
        for (std::size_t c = 0; c < kDim; ++c) {
          const std::size_t at = static_cast<std::size_t>(row) * kDim + c;
          ASSERT_EQ(keys[at], expected.key(row, head)[c]);
          changed += values[at] != expected.value(row, head)[c] ? 1 : 0;
        }
      }
    }
    EXPECT_GT(changed, 0);
  }
}

// A second prompt, forks and predicted bytes: four bytes per row more than over h2o, for the window's sums.
TEST(CamBases, SecondPromptForksAndBytes) {
  for (const char* base : {"tova", "snapkv,window=8", "h2o"}) {
    SCOPED_TRACE(base);
    FedCache cam = fed_cache(std::string("cam:target=40,interval=6,base=") + base);
    expect_ok(cam.prompt(100));
    expect_ok(cam.steps(4));
    FedCache fork = cam.fork();
    expect_ok(cam.prompt(30));
    EXPECT_LE(cam.cache.rows(0, 0), 45);
    expect_ok(cam.steps(20));
    expect_ok(cam.cache.check_integrity());
    EXPECT_EQ(fork.cache.next_position(), 104);
    expect_ok(fork.cache.check_integrity());
    EXPECT_EQ(predict_bytes(fork.cache.spec(), small_shape(), 100, 4).value(), fork.cache.bytes());
  }
  const auto live = [](const char* spec) { return predict_bytes(spec_of(spec), small_shape(), 100, 0)->live; };
  EXPECT_EQ(live("cam:target=40,base=snapkv") - live("cam:target=40,base=h2o"), 40U * kKvHeads * 4);
  EXPECT_EQ(live("cam:target=40,base=tova"), live("cam:target=40,base=h2o"));
}

}  // namespace
}  // namespace kvartet
