#include "offload/row_store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/file_tier_fixture.h"
#include "offload/row_store_fixture.h"

namespace kvartet {
namespace {

// What every tier owes its users, whatever it is made of.
class RowStoreTest : public testing::TestWithParam<TierKind> {
 protected:
  RowStoreOptions small_options() const { return options_for(GetParam(), folder_.path()); }
  bool in_ram() const { return GetParam().tier == Tier::kRam; }
  TestFolder folder_;
};

std::vector<TierKind> all_kinds() {
  std::vector<TierKind> kinds = {kRamKind};
  kinds.insert(kinds.end(), std::begin(kFileKinds), std::end(kFileKinds));
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Tiers, RowStoreTest, testing::ValuesIn(all_kinds()),
                         [](const testing::TestParamInfo<TierKind>& info) { return std::string(info.param.name); });

TEST_P(RowStoreTest, GivesBackTheRowsOfEveryAddress) {
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

// Rows in memory or in a mapped file are read where they lie: the bytes and the counts of a fetch.
TEST_P(RowStoreTest, LendsTheRowsThatAFetchWouldBring) {
  RowStore store = made(small_options());
  ASSERT_TRUE(append_rows(store, 0, 300).ok());
  const bool lends = in_ram() || store.medium() == "memory map";
  ASSERT_EQ(store.lends(), lends);
  const std::vector<std::int32_t> rows = {0, 127, 128, 299};
  std::vector<const std::byte*> where(rows.size());
  const Result<LentRows> lent = store.lend(0, 1, rows, where.data());
  ASSERT_TRUE(lent.ok());
  EXPECT_EQ(lent->lent, lends);
  EXPECT_EQ(lent->mapped.empty(), store.medium() != "memory map");
  if (!lent->lent) return;
  EXPECT_EQ(store.traffic().rows_fetched, rows.size());
  EXPECT_EQ(store.traffic().bytes_fetched, rows.size() * store.row_bytes(0));
  std::vector<std::byte> fetched(rows.size() * store.row_bytes(0));
  const HeadFetch fetch{.kv_head = 1, .rows = rows, .out = fetched.data()};
  ASSERT_TRUE(store.fetch(0, {&fetch, 1}).ok());
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(std::equal(where[i], where[i] + store.row_bytes(0), fetched.data() + i * store.row_bytes(0))) << i;
  EXPECT_EQ(store.lend(0, 1, std::vector<std::int32_t>{300}, where.data()).status().code(), Code::kInternal);
  RowStoreOptions cached = small_options();
  cached.cache_share = 0.5;
  EXPECT_FALSE(made(cached).lends());
}

TEST_P(RowStoreTest, SeveralFetchesAreUnderWayAndEndInAnyOrder) {
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

TEST_P(RowStoreTest, HeadsMayHoldDifferentCounts) {
  RowStore store = made(small_options());
  const std::vector<std::byte> five(5 * 256, std::byte{5});
  const std::vector<std::span<const std::byte>> rows = {five, {}};
  ASSERT_TRUE(store.append(1, rows).ok());
  EXPECT_EQ(store.rows(1, 0), 5);
  EXPECT_EQ(store.rows(1, 1), 0);
}

TEST_P(RowStoreTest, RefusesRowsThatAreNotThereOrNotAscending) {
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

TEST_P(RowStoreTest, AForkSharesWhatIsThereAndNothingThatComesLater) {
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

// T-MEM: the counts are the formula (docs/methods/tiers.md), however the rows came.
TEST_P(RowStoreTest, BytesEqualThePredictionAndTheArena) {
  for (const int rows : {0, 1, 15, 16, 62, 129}) {
    for (const int at_once : {1000, 7, 1}) {
      const RowStoreOptions options = small_options();
      RowStore store = made(options);
      for (int layer = 0; layer < store.layers(); ++layer) {
        for (int left = rows; left > 0; left -= at_once) ASSERT_TRUE(append_rows(store, layer, std::min(left, at_once)).ok());
      }
      const TierBytes bytes = store.bytes();
      EXPECT_EQ(bytes, predict_tier_bytes(options, rows)) << rows << " rows, " << at_once << " at once";
      EXPECT_EQ(bytes.slow.live + bytes.fast.live, static_cast<std::size_t>(rows) * (3 * 66 + 2 * 256 + 5000));
      EXPECT_EQ(in_ram() ? bytes.slow.allocated : 0u, options.slow->allocated_bytes());
      EXPECT_EQ(bytes.fast.allocated, options.fast->allocated_bytes());
      std::vector<StateBuffer> state;
      store.list_state("", &state);
      ByteAccount sum;
      for (const StateBuffer& buffer : state) sum += buffer.bytes;
      EXPECT_EQ(sum.live, bytes.slow.live + bytes.fast.live);
      EXPECT_EQ(sum.allocated, bytes.slow.allocated + bytes.fast.allocated);
    }
  }
}

// offloading.md 1.2
TEST_P(RowStoreTest, CountsWhatCrossesTheLink) {
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

// T-CACHE: reuse on or off gives the same rows; fetched bytes are misses * row size; the same selection twice fetches nothing.
TEST_P(RowStoreTest, TheRowCacheChangesTrafficAndNothingElse) {
  for (const double share : {0.0, 1.0 / 32, 1.0 / 8, 1.0}) {
    RowStoreOptions options = small_options();
    options.cache_share = share;
    RowStore store = made(options);
    ASSERT_TRUE(append_rows(store, 1, 1000).ok());
    for (int step = 0; step < 12; ++step) {
      Selection s = random_selection(store, 1, 0.05, static_cast<std::uint64_t>(step / 2));
      const RowTraffic before = store.traffic();
      store.begin_step();
      ASSERT_TRUE(store.fetch(1, s.fetches).ok());
      EXPECT_EQ(wrong_byte(store, 1, s), "");
      const RowTraffic after = store.traffic();
      EXPECT_EQ(after.bytes_fetched_this_step, (after.rows_fetched - before.rows_fetched) * 256);
      EXPECT_EQ(after.rows_fetched + after.rows_hit - before.rows_fetched - before.rows_hit, s.rows[0].size() + s.rows[1].size());
      if (step % 2 == 1 && share >= 1.0 / 8) {
        EXPECT_EQ(after.bytes_fetched_this_step, 0u);
      }
      EXPECT_EQ(store.bytes().fast.allocated, options.fast->allocated_bytes());
      if (step % 2 == 1) {  // between two pairs of equal selections
        ASSERT_TRUE(append_rows(store, 1, 1).ok());
      }
    }
  }
}

TEST_P(RowStoreTest, ARowCacheOverTheCapIsSaidAndLeavesRowsRight) {
  RowStoreOptions options = small_options();
  options.cache_share = 1;
  RowStore probe = made(options);
  ASSERT_TRUE(append_rows(probe, 1, 500).ok());
  const std::size_t cap = options.fast->peak_bytes() + 5000;
  options.fast = Arena::create(cap);
  RowStore store = made(options);
  ASSERT_TRUE(append_rows(store, 1, 500).ok());
  Buffer others;  // with these there is no room for even one piece of the row cache
  if (const std::size_t free = cap - options.fast->allocated_bytes(); free > 5000) {
    others = options.fast->allocate(free - 5000).value();
  }
  Selection s = random_selection(store, 1, 0.5, 1);
  EXPECT_EQ(store.fetch(1, s.fetches).code(), Code::kExhausted);
  EXPECT_LE(options.fast->peak_bytes(), cap);
}

// A failed append leaves the layer as it was, and nothing leaks.
TEST_P(RowStoreTest, EveryFailingAllocationLeavesTheLayerAsItWas) {
  for (const bool fast : {false, true}) {
    if (!fast && !in_ram()) continue;
    for (long n = 1;; ++n) {
      RowStoreOptions options = small_options();
      RowStore store = made(options);
      ASSERT_TRUE(append_rows(store, 0, 100).ok());
      const RowStore fork = store.fork();
      Arena& arena = fast ? *options.fast : *options.slow;
      arena.fail_nth_allocation(n);
      const Status status = append_rows(store, 0, 300);
      arena.fail_nth_allocation(0);
      if (status.ok()) {
        EXPECT_GT(n, fast && in_ram() ? 0 : 3);
        break;
      }
      EXPECT_EQ(status.code(), Code::kExhausted);
      EXPECT_EQ(store.rows(0, 0), 100);
      EXPECT_EQ(store.rows(0, 2), 100);
      ASSERT_TRUE(append_rows(store, 0, 5).ok());
      EXPECT_EQ(wrong_row(store), "");
    }
  }
}

TEST_P(RowStoreTest, EveryFailingAllocationAtTheStartIsSaid) {
  for (long n = 1;; ++n) {
    const RowStoreOptions options = small_options();
    options.fast->fail_nth_allocation(n);
    auto store = RowStore::create(options);
    options.fast->fail_nth_allocation(0);
    if (store.ok()) break;
    EXPECT_EQ(store.status().code(), Code::kExhausted);
    EXPECT_EQ(options.fast->allocated_bytes(), 0u);
    EXPECT_EQ(folder_.entries(), 0);
  }
}

TEST_P(RowStoreTest, TheSlowTiersCapHoldsAtEveryStep) {
  constexpr std::uint64_t kCap = 150000;
  RowStoreOptions options = small_options();
  options.slow = Arena::create(kCap);
  options.file.budget = std::make_shared<ByteBudget>(kCap);
  RowStore store = made(options);
  Status status;
  while (status.ok()) {
    status = append_rows(store, 1, 10);
    EXPECT_LE(store.bytes().slow.allocated, kCap);
    EXPECT_LE(options.file.budget->used(), kCap);
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_EQ(store.rows(1, 0), store.rows(1, 1));
  EXPECT_GT(store.bytes().slow.live, kCap / 2);
  EXPECT_EQ(wrong_row(store), "");
}

}  // namespace
}  // namespace kvartet
