// streamingllm:rope=rerotate, the paper's form (compression.md 6.1 a): attention equals attention over the kept rows, rotated
// from scratch to the angles 0..S+W-1 of their rows, with the query at the last of them.
#include <gtest/gtest.h>

#include <algorithm>

#include "cache/cache_fixture.h"
#include "core/rope_table.h"

namespace kvartet {
namespace {

using namespace test;

constexpr int kTokens = 700;

ModelShape turning_shape(RopeLayout layout = RopeLayout::kHalves) {
  ModelShape shape = small_shape();
  shape.rope = {.dims = kDim, .base = 10000, .scale = 1, .layout = layout};
  return shape;
}

// The shared rows are keys before rotation; the cache is fed with them at the angles of their positions.
class Turned {
 public:
  explicit Turned(const std::string& spec, RopeLayout layout = RopeLayout::kHalves,
                  std::shared_ptr<Arena> arena = Arena::create())
      : shape_(turning_shape(layout)),
        table_(RopeTable::create(shape_.rope, kTokens, *Arena::create()).value()),
        rows_(kTokens, 17),
        fed_(fed_cache(spec, std::move(arena), shape_, &rows_)) {
    for (int t = 0; t < kTokens; ++t) {
      for (std::size_t h = 0; h < kKvHeads; ++h)
        table_.rotate(rows_.keys.data() + (static_cast<std::size_t>(t) * kKvHeads + h) * kDim, t);
    }
  }
  Turned(const Turned&) = delete;

  FedCache& fed() { return fed_; }

  // Attention of a query (before rotation) in double over the rows that stay, as the paper writes it.
  std::vector<double> by_row(std::vector<float> q, int head) const {
    std::vector<std::int32_t> kept = fed_.cache.positions(0, head);
    std::sort(kept.begin(), kept.end());
    std::vector<float> keys;
    std::vector<float> values;
    for (std::size_t row = 0; row < kept.size(); ++row) {
      std::vector<float> key(shared_rows().key(kept[row], head), shared_rows().key(kept[row], head) + kDim);
      table_.rotate(key.data(), static_cast<int>(row));
      keys.insert(keys.end(), key.begin(), key.end());
      values.insert(values.end(), rows_.value(kept[row], head), rows_.value(kept[row], head) + kDim);
    }
    table_.rotate(q.data(), static_cast<int>(kept.size()) - 1);
    return attend(q, keys, values);
  }
  // What the cache's rows give to the same query at the angle of its position.
  std::vector<double> by_cache(std::vector<float> q, int head) const {
    table_.rotate(q.data(), newest());
    return attend_view(q, fed_.cache.views(0)[static_cast<std::size_t>(head)]);
  }
  int newest() const {
    const std::vector<std::int32_t> kept = fed_.cache.positions(0, 0);
    return *std::max_element(kept.begin(), kept.end());
  }

 private:
  ModelShape shape_;
  RopeTable table_;
  TokenRows rows_;
  FedCache fed_;
};

void expect_as_by_row(Turned& turned, std::uint64_t seed) {
  for (int head = 0; head < kKvHeads; ++head) {
    const std::vector<float> q = random_query(seed + static_cast<std::uint64_t>(head));
    expect_close(turned.by_cache(q, head), turned.by_row(q, head), 2e-4);  // angles of f32 at positions of hundreds
  }
}

TEST(Rerotate, Section61EqualsRotationFromScratchByRow) {
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kNeighbours}) {
    for (const int prompt : {2, 11, 12, 13, 40, 300}) {
      SCOPED_TRACE(prompt);
      Turned turned("streamingllm:sinks=4,window=8,rope=rerotate+f32", layout);
      expect_ok(turned.fed().prompt(prompt));
      expect_as_by_row(turned, 1);
      for (int step = 0; step < 30; ++step) {
        expect_ok(turned.fed().append(0));
        expect_as_by_row(turned, static_cast<std::uint64_t>(step));  // what a step's attention sees
        expect_ok(turned.fed().settle(0));
        turned.fed().cache.finish_step();
        expect_ok(turned.fed().cache.check_integrity());
        EXPECT_EQ(turned.fed().cache.rows(0, 0), std::min(prompt + step + 1, 12));
      }
      expect_ok(turned.fed().prompt(25));  // a second prompt
      expect_as_by_row(turned, 9);
      EXPECT_EQ(turned.fed().cache.next_position(), prompt + 55);
    }
  }
}

// It is another method than the absolute form, as soon as something was dropped, and the same before (R5).
TEST(Rerotate, DiffersFromAbsoluteFormOnlyOnceRowsAreDropped) {
  Turned turned("streamingllm:sinks=4,window=60,rope=rerotate");
  Turned absolute("streamingllm:sinks=4,window=60");
  Turned full("full");
  for (Turned* t : {&turned, &absolute, &full}) {
    expect_ok(t->fed().prompt(40));
    expect_ok(t->fed().steps(24));
  }
  expect_same_views(turned.fed().cache, full.fed().cache);
  for (Turned* t : {&turned, &absolute}) expect_ok(t->fed().steps(1));
  const std::vector<float> a = read_rows(turned.fed().cache.views(0)[0].keys);
  const std::vector<float> b = read_rows(absolute.fed().cache.views(0)[0].keys);
  EXPECT_FALSE(std::equal(a.begin(), a.begin() + 4 * kDim, b.begin()));          // the sinks
  EXPECT_TRUE(std::equal(a.begin() + 4 * kDim, a.end(), b.begin() + 4 * kDim));  // and nothing else
  EXPECT_EQ(read_rows(turned.fed().cache.views(0)[0].values), read_rows(absolute.fed().cache.views(0)[0].values));
}

// Always from the key as it came: a thousand single turns end where one turn ends, to the bit.
TEST(Rerotate, DoesNotDrift) {
  Turned stepped("streamingllm:sinks=4,window=8,rope=rerotate");
  Turned at_once("streamingllm:sinks=4,window=8,rope=rerotate");
  expect_ok(stepped.fed().steps(650));
  expect_ok(at_once.fed().prompt(650));
  expect_same_views(stepped.fed().cache, at_once.fed().cache);
}

TEST(Rerotate, ForksTurnTheirOwnRows) {
  Turned turned("streamingllm:sinks=4,window=8,rope=rerotate+f32");
  expect_ok(turned.fed().prompt(100));
  const std::vector<float> before = read_rows(turned.fed().cache.views(0)[0].keys);
  FedCache fork = turned.fed().fork();
  expect_ok(fork.steps(20));
  EXPECT_EQ(read_rows(turned.fed().cache.views(0)[0].keys), before);
  expect_ok(turned.fed().steps(20));
  expect_same_views(turned.fed().cache, fork.cache);
  expect_ok(fork.cache.check_integrity());
}

// 4 bytes per channel and kept first token on top of the absolute form; allocated in tiles of four keys.
TEST(Rerotate, BytesAreCountedAndPredicted) {
  for (const int sinks : {0, 1, 4, 6}) {
    const std::string spec = "streamingllm:sinks=" + std::to_string(sinks) + ",window=20,rope=";
    for (const int prompt : {1, 3, 20, 200}) {
      Turned turned(spec + "rerotate+q8_0");
      Turned absolute(spec + "absolute+q8_0");
      for (Turned* t : {&turned, &absolute}) {
        expect_ok(t->fed().prompt(prompt));
        expect_ok(t->fed().steps(3));
        expect_ok(t->fed().cache.check_integrity());
        EXPECT_EQ(predict_bytes(t->fed().cache.spec(), turning_shape(), prompt, 3).value(), t->fed().cache.bytes());
      }
      const auto kept = static_cast<std::size_t>(std::min(sinks, prompt + 3));
      const ByteAccount more = turned.fed().cache.bytes();
      const ByteAccount less = absolute.fed().cache.bytes();
      EXPECT_EQ(more.live - less.live, kKvHeads * kept * kDim * 4);
      EXPECT_EQ(more.allocated - less.allocated, kKvHeads * ((kept + 3) / 4 * 4) * kDim * 4);
    }
  }
}

TEST(Rerotate, AFailedAllocationChangesNothing) {
  for (const char* spec : {"streamingllm:sinks=4,window=8,rope=rerotate", "streamingllm:sinks=4,window=8,rope=rerotate+q8_0"}) {
    for (long n = 1; n < 40; ++n) {
      const auto arena = Arena::create();
      Turned turned(spec, RopeLayout::kHalves, arena);
      expect_ok(turned.fed().prompt(100));
      FedCache fork = turned.fed().fork();  // whose tiles are shared: writing needs memory
      const std::vector<float> before = read_rows(fork.cache.views(0)[0].keys);
      const ByteAccount bytes = fork.cache.bytes();
      arena->fail_nth_allocation(n);
      const Status status = fork.append(0);
      arena->fail_nth_allocation(0);
      if (status.ok()) break;
      EXPECT_EQ(status.code(), Code::kExhausted);
      EXPECT_EQ(read_rows(fork.cache.views(0)[0].keys), before);
      EXPECT_EQ(fork.cache.bytes(), bytes);
      EXPECT_LT(n, 39);
    }
  }
}

TEST(Rerotate, IsRefusedWhereTheRotationIsNotKnown) {
  const Status status = check_spec(spec_of("streamingllm:rope=rerotate"), small_shape());
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_NE(status.message().find("rope=absolute"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace kvartet
