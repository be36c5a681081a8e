#include "offload/row_store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/row_store_fixture.h"

namespace kvartet {
namespace {

// Three layers of different shapes: odd row sizes, one with a single head of long rows (joint groups).
RowStoreOptions small_options() {
  return {.tier = Tier::kRam,
          .layers = {{.kv_heads = 3, .row_bytes = 66}, {.kv_heads = 2, .row_bytes = 256}, {.kv_heads = 1, .row_bytes = 1000}},
          .fast = Arena::create(),
          .slow = Arena::create()};
}

RowStore made(const RowStoreOptions& options) {
  auto store = RowStore::create(options);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return std::move(store).value();
}

TEST(RowStore, GivesBackTheRowsOfEveryAddress) {
  RowStore store = made(small_options());
  for (int layer = 0; layer < store.layers(); ++layer) {
    ASSERT_TRUE(append_rows(store, layer, 300).ok());
    for (int i = 0; i < 17; ++i) ASSERT_TRUE(append_rows(store, layer, 1).ok());
  }
  for (const double share : {0.0, 0.03, 0.5, 1.0}) {
    for (int layer = 0; layer < store.layers(); ++layer) {
      Selection s = random_selection(store, layer, share, 7);
      ASSERT_TRUE(store.fetch(layer, s.fetches).ok());
      EXPECT_EQ(wrong_byte(store, layer, s), "");
    }
  }
  EXPECT_EQ(store.rows(0, 2), 317);
}

TEST(RowStore, SeveralFetchesAreUnderWayAndEndInAnyOrder) {
  RowStore store = made(small_options());
  std::vector<Selection> selections;
  std::vector<FetchTicket> tickets;
  for (int layer = 0; layer < store.layers(); ++layer) {
    ASSERT_TRUE(append_rows(store, layer, 200).ok());
    selections.push_back(random_selection(store, layer, 0.2, 3));
  }
  for (int layer = 0; layer < store.layers(); ++layer) {
    auto ticket = store.begin_fetch(layer, selections[static_cast<std::size_t>(layer)].fetches);
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(std::move(ticket).value());
  }
  for (int layer = store.layers() - 1; layer >= 0; --layer) {
    ASSERT_TRUE(store.wait(std::move(tickets[static_cast<std::size_t>(layer)])).ok());
    EXPECT_EQ(wrong_byte(store, layer, selections[static_cast<std::size_t>(layer)]), "");
  }
}

TEST(RowStore, HeadsMayHoldDifferentCounts) {
  RowStore store = made(small_options());
  const std::vector<std::byte> five(5 * 256, std::byte{5});
  const std::vector<std::span<const std::byte>> rows = {five, {}};
  ASSERT_TRUE(store.append(1, rows).ok());
  EXPECT_EQ(store.rows(1, 0), 5);
  EXPECT_EQ(store.rows(1, 1), 0);
}

TEST(RowStore, RefusesRowsThatAreNotThereOrNotAscending) {
  RowStore store = made(small_options());
  ASSERT_TRUE(append_rows(store, 0, 10).ok());
  for (const std::vector<std::int32_t>& rows : {std::vector<std::int32_t>{10}, {-1}, {3, 3}, {4, 2}}) {
    Selection s = select_rows(store, 0, {rows, {}, {}});
    EXPECT_EQ(store.fetch(0, s.fetches).code(), Code::kInternal);
  }
  RowStoreOptions bad = small_options();
  bad.layers[1].row_bytes = 0;
  EXPECT_EQ(RowStore::create(bad).status().code(), Code::kUsage);
}

TEST(RowStore, AForkSharesWhatIsThereAndNothingThatComesLater) {
  RowStore store = made(small_options());
  ASSERT_TRUE(append_rows(store, 0, 130).ok());
  RowStore fork = store.fork();
  ASSERT_TRUE(append_rows(store, 0, 40, 1).ok());
  ASSERT_TRUE(append_rows(fork, 0, 20, 2).ok());
  RowStore late = fork.fork();
  ASSERT_TRUE(append_rows(fork, 0, 150, 3).ok());
  const auto check = [](RowStore& s, const auto& salt_of) {
    Selection all = random_selection(s, 0, 1.0, 1);
    EXPECT_TRUE(s.fetch(0, all.fetches).ok());
    EXPECT_EQ(wrong_byte(s, 0, all, salt_of), "");
  };
  check(store, [](int row) { return row < 130 ? 0 : 1; });
  check(fork, [](int row) { return row < 130 ? 0 : row < 150 ? 2 : 3; });
  check(late, [](int row) { return row < 130 ? 0 : 2; });
  EXPECT_EQ(late.traffic().rows_fetched, 3u * 150);
}

// T-MEM: the counts are the formula: rows * row bytes live, whole chunks of 128 rows allocated.
TEST(RowStore, BytesEqualThePredictionAndTheArena) {
  for (const int rows : {0, 1, 127, 128, 129, 400}) {
    const RowStoreOptions options = small_options();
    RowStore store = made(options);
    for (int layer = 0; layer < store.layers(); ++layer) ASSERT_TRUE(append_rows(store, layer, rows).ok());
    const TierBytes bytes = store.bytes();
    EXPECT_EQ(bytes, predict_tier_bytes(options, rows));
    EXPECT_EQ(bytes.slow.live, static_cast<std::size_t>(rows) * (3 * 66 + 2 * 256 + 1000));
    EXPECT_EQ(bytes.slow.allocated, options.slow->allocated_bytes());
    EXPECT_EQ(bytes.fast.allocated, options.fast->allocated_bytes());
    std::vector<StateBuffer> state;
    store.list_state("", &state);
    ByteAccount sum;
    for (const StateBuffer& buffer : state) sum += buffer.bytes;
    EXPECT_EQ(sum.live, bytes.slow.live + bytes.fast.live);
    EXPECT_EQ(sum.allocated, bytes.slow.allocated + bytes.fast.allocated);
  }
}

// offloading.md 1.2
TEST(RowStore, CountsWhatCrossesTheLink) {
  RowStore store = made(small_options());
  ASSERT_TRUE(append_rows(store, 1, 100).ok());
  Selection s = select_rows(store, 1, {{1, 5, 99}, {7}});
  store.begin_step();
  ASSERT_TRUE(store.fetch(1, s.fetches).ok());
  EXPECT_EQ(store.traffic().bytes_fetched_this_step, 4u * 256);
  ASSERT_TRUE(store.fetch(1, s.fetches).ok());
  EXPECT_EQ(store.traffic().bytes_fetched_this_step, 8u * 256);
  store.begin_step();
  EXPECT_EQ(store.traffic().bytes_fetched_this_step, 0u);
  EXPECT_EQ(store.traffic().bytes_fetched, 8u * 256);
  EXPECT_EQ(store.traffic().rows_fetched, 8u);
  EXPECT_EQ(store.traffic().rows_hit, 0u);
}

// The cap holds at every step, every failing allocation is told, and a failed append leaves the layer as it was.
TEST(RowStore, EveryFailingAllocationLeavesTheLayerAsItWas) {
  for (long n = 1;; ++n) {
    RowStoreOptions options = small_options();
    RowStore store = made(options);
    ASSERT_TRUE(append_rows(store, 0, 100).ok());
    const RowStore fork = store.fork();
    options.slow->fail_nth_allocation(n);
    const Status status = append_rows(store, 0, 300);
    options.slow->fail_nth_allocation(0);
    if (status.ok()) {
      EXPECT_GT(n, 3);
      break;
    }
    EXPECT_EQ(status.code(), Code::kExhausted);
    EXPECT_EQ(store.rows(0, 0), 100);
    EXPECT_EQ(store.rows(0, 2), 100);
    ASSERT_TRUE(append_rows(store, 0, 5).ok());
    Selection all = random_selection(store, 0, 1.0, 1);
    ASSERT_TRUE(store.fetch(0, all.fetches).ok());
    EXPECT_EQ(wrong_byte(store, 0, all), "");
  }
}

TEST(RowStore, TheSlowTiersCapHolds) {
  RowStoreOptions options = small_options();
  options.slow = Arena::create(60000);
  RowStore store = made(options);
  Status status;
  while (status.ok()) {
    status = append_rows(store, 1, 10);
    EXPECT_LE(options.slow->allocated_bytes(), 60000u);
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_EQ(store.rows(1, 0), store.rows(1, 1));
}

}  // namespace
}  // namespace kvartet
