// When KIVI seals rows (compression.md 2.3), and that the path by which rows came leaves no trace (T8).
#include <gtest/gtest.h>

#include <array>

#include "cache/cache_fixture.h"
#include "cache/head_side.h"

namespace kvartet {
namespace {

using namespace test;

using Counts = std::array<int, 5>;  // total, nKq, nKr, nVq, nVr

Counts counts_of(const SequenceCache& cache, const std::string& format = "kivi4") {
  const HeadView& view = cache.views(0)[1];
  return {view.rows, rows_in_format(view.keys, format), f16_rows(view.keys), rows_in_format(view.values, format),
          f16_rows(view.values)};
}

void expect_schedule(int prompt, const std::vector<Counts>& expected) {
  FedCache fed = fed_cache("kivi:residual=32");
  expect_ok(fed.prompt(prompt));
  for (const Counts& counts : expected) {
    expect_ok(fed.steps(counts[0] - fed.cache.next_position()));
    EXPECT_EQ(counts_of(fed.cache), counts);
    expect_ok(fed.cache.check_integrity());
  }
}

// The schedules of section 2.3 as they stand there, R = 4, from the rule that says how many rows are sealed between steps.
TEST(KiviSchedule, Section23ScheduleOfFour) {
  SideFormats keys;
  keys.residual = 4;
  keys.sealed.tile_rows = kBlockRows;
  keys.sealed.row_step = 2;  // codes of several rows share a scale
  SideFormats values = keys;
  values.sealed.row_step = 1;
  for (const auto& [total, key_sealed, key_open, value_sealed, value_open] :
       {Counts{5, 4, 1, 1, 4}, Counts{6, 4, 2, 2, 4}, Counts{7, 4, 3, 3, 4}, Counts{8, 8, 0, 4, 4}, Counts{9, 8, 1, 5, 4},
        Counts{12, 12, 0, 8, 4}, Counts{3, 0, 3, 0, 3}, Counts{4, 4, 0, 0, 4}}) {
    EXPECT_EQ(keys.sealed_rows(total), key_sealed) << total;
    EXPECT_EQ(total - keys.sealed_rows(total), key_open) << total;
    EXPECT_EQ(values.sealed_rows(total), value_sealed) << total;
    EXPECT_EQ(total - values.sealed_rows(total), value_open) << total;
  }
}

// The three rows of section 2.3, its R = 4 scaled to the smallest legal R = 32.
TEST(KiviSchedule, Section23) {
  expect_schedule(40, {{40, 32, 8, 8, 32}, {48, 32, 16, 16, 32}, {63, 32, 31, 31, 32}, {64, 64, 0, 32, 32}, {65, 64, 1, 33, 32}});
  expect_schedule(64, {{64, 64, 0, 32, 32}, {65, 64, 1, 33, 32}, {95, 64, 31, 63, 32}, {96, 96, 0, 64, 32}});
  expect_schedule(24, {{24, 0, 24, 0, 24}, {31, 0, 31, 0, 31}, {32, 32, 0, 0, 32}, {33, 32, 1, 1, 32}});
}

// The step's own attention still sees f16: R keys before the flush, R + 1 values before the oldest is sealed.
TEST(KiviSchedule, Section23AttentionSeesTheRowsBeforeTheFlush) {
  FedCache fed = fed_cache("kivi:residual=32");
  expect_ok(fed.prompt(63));
  expect_ok(fed.append(0));
  EXPECT_EQ(counts_of(fed.cache), (Counts{64, 32, 32, 31, 33}));
  expect_ok(fed.cache.check_integrity());
  expect_ok(fed.settle(0));
  EXPECT_EQ(counts_of(fed.cache), (Counts{64, 64, 0, 32, 32}));
}

// 2.8: nKq % R == 0 and nVr == min(total, R) after any number of steps, for other R and with tiles that R cuts.
TEST(KiviSchedule, Section28InvariantsAfterEveryStep) {
  for (const int residual : {32, 96, 128}) {
    FedCache fed = fed_cache("kivi:bits=2,residual=" + std::to_string(residual));
    for (int total = 1; total <= 300; ++total) {
      expect_ok(fed.steps(1));
      const int keys = total - total % residual;
      const int values = std::max(0, total - residual);
      ASSERT_EQ(counts_of(fed.cache, "kivi2"), (Counts{total, keys, total - keys, values, total - values}));
      expect_ok(fed.cache.check_integrity());
    }
  }
}

// T8, 2.8: one by one, at once, or any mix: the same rows, borders and codes. A second prompt is a mix too.
TEST(KiviSchedule, T8IncrementalEqualsBatch) {
  const std::vector<std::string> specs = {"kivi:residual=32",
                                          "kivi:bits=2,group=64,residual=64",
                                          "kivi:bits=4/2",
                                          "q8_0/kivi:bits=8,residual=96",
                                          "kivi/full:residual=32",
                                          "full",
                                          "f32",
                                          "q8_0",
                                          "q4_1:rotate=hadamard",
                                          "fp8",
                                          "turboquant:bits=3",
                                          "turboquant:bits=4,residual=50",
                                          "q4_0",
                                          "q5_0",
                                          "turboquant:bits=3,variant=prod",
                                          "polar-angle",
                                          "qjl:sketch=64,residual=32",
                                          "kivi:bits=3,residual=64",
                                          "streamingllm:window=60",
                                          "streamingllm:window=60+q8_0"};
  for (const std::string& spec : specs) {
    for (const auto& [first, second] : {std::pair{0, 0}, {31, 1}, {32, 100}, {129, 0}, {200, 100}, {1, 299}}) {
      FedCache once = fed_cache(spec);
      expect_ok(once.prompt(300));
      FedCache mixed = fed_cache(spec);
      if (first > 0) expect_ok(mixed.prompt(first));
      if (second > 0) expect_ok(mixed.prompt(second));
      expect_ok(mixed.steps(300 - first - second));
      SCOPED_TRACE(spec + " " + std::to_string(first) + "+" + std::to_string(second));
      expect_same_views(once.cache, mixed.cache);
      EXPECT_EQ(once.cache.positions(0, 1), mixed.cache.positions(0, 1));
      EXPECT_EQ(once.cache.bytes(), mixed.cache.bytes());
      expect_ok(mixed.cache.check_integrity());
    }
  }
}

// T12: sealing on several threads gives the same bits.
TEST(KiviSchedule, T12ThreadCountsAgree) {
  for (const std::string spec : {"kivi:bits=2,residual=32", "snapkv:budget=100+kivi", "q8_0"}) {
    FedCache one = fed_cache(spec);
    expect_ok(one.prompt(777));
    for (const int threads : {2, 3, 7, 16}) {
      FedCache many = fed_cache(spec, Arena::create(), small_shape(), &shared_rows(), threads);
      expect_ok(many.prompt(777));
      expect_same_views(one.cache, many.cache);
    }
  }
}

// Sealed rows are the format's rendering of the f16 rows, group by group: the same numbers as encoding them directly.
TEST(KiviSchedule, SealedRowsAreTheEncodedF16Rows) {
  FedCache exact = fed_cache("full");
  FedCache fed = fed_cache("kivi:bits=4,residual=32");
  expect_ok(exact.prompt(64));
  expect_ok(fed.prompt(64));
  const TileFormat format = *make_tile_format({"kivi", 4, 32}, Side::kKey, kDim);
  std::vector<std::byte> tile(format.tile_bytes + 64);
  const std::vector<float> rows = read_rows(exact.cache.views(0)[0].keys);
  std::vector<float> expected(rows.size());
  for (int begin = 0; begin < 64; begin += format.tile_rows) {
    const int count = std::min(format.tile_rows, 64 - begin);
    const std::size_t at = static_cast<std::size_t>(begin) * kDim;
    const auto n = static_cast<std::size_t>(count);
    std::byte* aligned = tile.data() + (64 - reinterpret_cast<std::uintptr_t>(tile.data()) % 64) % 64;
    expect_ok(format.kernels.encode(format, aligned, 0, {rows.data() + at, n, kDim}));
    format.kernels.decode(format, aligned, 0, count, {expected.data() + at, n, kDim});
  }
  EXPECT_EQ(read_rows(fed.cache.views(0)[0].keys), expected);
}

}  // namespace
}  // namespace kvartet
