// Forks share tiles until one writes; failures leave everything consistent and other caches untouched.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "cache/cache_fixture.h"

namespace kvartet {
namespace {

using namespace test;

const std::vector<std::string>& all_kinds() {
  static const std::vector<std::string> kinds = {"full",
                                                 "f32",
                                                 "q8_0",
                                                 "kivi:residual=32",
                                                 "kivi:bits=2,group=64",
                                                 "full/kivi:residual=64",
                                                 "q4_0:center=mean",
                                                 "fp8:scale=calibrated",
                                                 "turboquant:bits=2.5,residual=40",
                                                 "streamingllm:window=60+turboquant:bits=3,variant=prod",
                                                 "snapkv:budget=90",
                                                 "snapkv:budget=90+kivi:residual=32",
                                                 "streamingllm:window=60",
                                                 "streamingllm:window=60+q8_0",
                                                 "h2o:budget=90",
                                                 "h2o:budget=90+q8_0",
                                                 "tova:budget=90",
                                                 "pyramidkv:budget=90",
                                                 "adakv:budget=90",
                                                 "cam:target=90,merge=4",
                                                 "cam:target=90,interval=8,base=h2o,merge=4+q8_0/full"};
  return kinds;
}

// Rotation tables: what a cache without rows holds.
ByteAccount empty_bytes(const std::string& spec) { return *predict_bytes(spec_of(spec), small_shape(), 0, 0); }

// Both branches of a fork equal caches that went their way alone.
TEST(Fork, BranchesAreIndependent) {
  const TokenRows others(700, 99);
  for (const std::string& spec : all_kinds()) {
    SCOPED_TRACE(spec);
    // `others` agrees with the shared rows on the prompt, then differs.
    TokenRows branch = others;
    std::copy_n(shared_rows().keys.begin(), 150 * kKvHeads * kDim, branch.keys.begin());
    std::copy_n(shared_rows().values.begin(), 150 * kKvHeads * kDim, branch.values.begin());

    FedCache trunk = fed_cache(spec);
    expect_ok(trunk.prompt(150));
    FedCache fork = trunk.fork();
    fork.rows = &branch;
    for (int i = 0; i < 100; ++i) {  // interleaved, so that each writes while the other holds the tile
      expect_ok(trunk.steps(1));
      expect_ok(fork.steps(1));
    }
    expect_ok(fork.prompt(80));
    FedCache alone = fed_cache(spec);
    expect_ok(alone.prompt(150));
    expect_ok(alone.steps(100));
    FedCache branch_alone = fed_cache(spec, Arena::create(), small_shape(), &branch);
    expect_ok(branch_alone.prompt(150));
    expect_ok(branch_alone.steps(100));
    expect_ok(branch_alone.prompt(80));
    expect_same_views(trunk.cache, alone.cache);
    expect_same_views(fork.cache, branch_alone.cache);
    EXPECT_EQ(fork.cache.positions(0, 0), branch_alone.cache.positions(0, 0));
    expect_ok(trunk.cache.check_integrity());
    expect_ok(fork.cache.check_integrity());
  }
}

// A row replaced in a block that is not the last one: the clone must show in the middle of the pieces.
TEST(Fork, ReplacedRowsFarFromTheEnd) {
  FedCache trunk = fed_cache("streamingllm:window=300");
  expect_ok(trunk.prompt(304));
  FedCache fork = trunk.fork();
  expect_ok(fork.steps(3));
  expect_ok(fork.cache.check_integrity());
  FedCache alone = fed_cache("streamingllm:window=300");
  expect_ok(alone.prompt(304));
  expect_same_views(trunk.cache, alone.cache);
  expect_ok(alone.steps(3));
  expect_same_views(fork.cache, alone.cache);
}

TEST(Fork, SharesMemoryUntilAWrite) {
  for (const std::string& spec : all_kinds()) {
    const std::shared_ptr<Arena> arena = Arena::create();
    FedCache trunk = fed_cache(spec, arena);
    expect_ok(trunk.prompt(1000));
    const std::size_t before = arena->allocated_bytes();
    {
      FedCache fork = trunk.fork();
      EXPECT_EQ(arena->allocated_bytes(), before) << spec;
      EXPECT_EQ(fork.cache.bytes(), trunk.cache.bytes());
      expect_ok(fork.steps(1));
      EXPECT_GT(arena->allocated_bytes(), before) << spec;
      expect_same_views(trunk.cache, trunk.fork().cache);
    }
    EXPECT_EQ(arena->allocated_bytes(), before) << spec;
  }
}

// The trunk may go first; the fork's pieces still point to living tiles.
TEST(Fork, OutlivesTheTrunk) {
  const std::shared_ptr<Arena> arena = Arena::create();
  {
    std::vector<FedCache> forks;
    {
      FedCache trunk = fed_cache("kivi:residual=32", arena);
      expect_ok(trunk.prompt(200));
      forks.push_back(trunk.fork());
    }
    expect_ok(forks[0].steps(70));
    FedCache alone = fed_cache("kivi:residual=32");
    expect_ok(alone.prompt(200));
    expect_ok(alone.steps(70));
    expect_same_views(forks[0].cache, alone.cache);
  }
  EXPECT_EQ(arena->allocated_bytes(), 0U);
}

// T11, R8: a NaN or an Inf is reported with its place, the layer keeps its rows, and the cache says from then on that it
// is broken. Other caches of the same arena go on.
TEST(Faults, T11BadRowsAreReported) {
  for (const std::string& spec : all_kinds()) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 70000.0F}) {
      if (bad == 70000.0F && spec != "full") continue;  // beyond f16
      TokenRows rows(200, 4);
      rows.values[(static_cast<std::size_t>(150) * kKvHeads + 1) * kDim + 7] = bad;
      const std::shared_ptr<Arena> arena = Arena::create();
      FedCache fed = fed_cache(spec, arena, small_shape(), &rows);
      expect_ok(fed.prompt(150));
      FedCache before = fed.fork();
      const Status status = fed.steps(1);
      SCOPED_TRACE(spec);
      EXPECT_EQ(status.code(), Code::kBadInput);
      for (const char* part : {"layer 0", "KV head 1", "values", "channel 7"}) {
        EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
      }
      expect_same_views(before.cache, fed.cache);
      expect_ok(fed.cache.check_integrity());
      EXPECT_EQ(fed.steps(1).code(), Code::kBadInput);
      before.rows = &shared_rows();
      expect_ok(before.steps(5));

      FedCache prompt = fed_cache(spec, arena, small_shape(), &rows);
      EXPECT_EQ(prompt.prompt(200).code(), Code::kBadInput);
      EXPECT_EQ(prompt.cache.rows(0, 0), 0);
      EXPECT_EQ(prompt.cache.bytes(), empty_bytes(spec));
      expect_ok(prompt.cache.check_integrity());
    }
  }
}

// Zeros, constants, a large outlier and subnormals are data, not errors.
TEST(Faults, T11HardButLegalRows) {
  for (const std::string& spec : all_kinds()) {
    TokenRows rows(300, 4);
    std::fill_n(rows.keys.begin(), 40 * kKvHeads * kDim, 0.0F);
    std::fill_n(rows.values.begin(), 40 * kKvHeads * kDim, -2.5F);
    std::fill_n(rows.keys.begin() + 5000, 1000, 1e-40F);
    rows.keys[9000] = 1e4F;
    FedCache fed = fed_cache(spec, Arena::create(), small_shape(), &rows);
    expect_ok(fed.prompt(250));
    expect_ok(fed.steps(50));
    for (const float x : read_rows(fed.cache.views(0)[0].keys)) ASSERT_TRUE(std::isfinite(x)) << spec;
  }
}

// DESIGN 7: the n-th allocation fails, for n = 1, 2, ... until none does. Each time the cache is whole, the arena's count
// is right, nothing leaks, and a sibling in the same arena goes on.
TEST(Faults, EveryAllocationMayFail) {
  for (const std::string& spec : all_kinds()) {
    SCOPED_TRACE(spec);
    const std::shared_ptr<Arena> arena = Arena::create();
    FedCache sibling = fed_cache(spec, arena);
    expect_ok(sibling.prompt(150));
    const std::size_t siblings_bytes = arena->allocated_bytes();
    bool failed = true;
    int n = 0;
    while (failed) {
      arena->fail_nth_allocation(++n);
      ASSERT_LT(n, 5000);
      {
        FedCache fed = sibling.fork();  // shares tiles: cloning may fail too
        Status status = fed.steps(70);
        if (status.ok()) status = fed.prompt(100);
        failed = !status.ok();
        arena->fail_nth_allocation(0);
        if (failed) {
          EXPECT_EQ(status.code(), Code::kExhausted);
        }
        expect_ok(fed.cache.check_integrity());
        EXPECT_EQ(failed, fed.steps(1).code() == Code::kExhausted);
      }
      EXPECT_EQ(arena->allocated_bytes(), siblings_bytes);
      expect_ok(sibling.cache.check_integrity());
    }
    EXPECT_GT(n, 2 * kKvHeads) << "too few failures were tried";
    expect_ok(sibling.steps(70));
    FedCache alone = fed_cache(spec);
    expect_ok(alone.prompt(150));
    expect_ok(alone.steps(70));
    expect_same_views(sibling.cache, alone.cache);
  }
}

// A prompt that does not fit leaves no bytes behind.
TEST(Faults, PromptOverTheCapGivesEverythingBack) {
  for (const std::string& spec : all_kinds()) {
    const std::shared_ptr<Arena> arena = Arena::create(10'000 + empty_bytes(spec).allocated);
    FedCache fed = fed_cache(spec, arena);
    const Status status = fed.prompt(400);
    EXPECT_EQ(status.code(), Code::kExhausted) << spec;
    EXPECT_NE(status.message().find("--fast-tier-bytes"), std::string::npos) << status.message();
    EXPECT_EQ(arena->allocated_bytes(), empty_bytes(spec).allocated);
    expect_ok(fed.cache.check_integrity());
  }
}

// DESIGN 4: state is enumerable, every buffer under a name of its own.
TEST(State, NamesAreUnique) {
  FedCache fed = fed_cache("snapkv:budget=300+kivi:residual=32", Arena::create(), small_shape(2));
  expect_ok(fed.prompt(500));
  std::vector<std::string> names;
  for (const StateBuffer& buffer : fed.cache.state()) names.push_back(buffer.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(names.front(), "layer 0 head 0 key f16 tile 4");
}

}  // namespace
}  // namespace kvartet
