// What pages a fetch from a file reads, and who may start reads and wait for them.
#include "offload/page_reader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "offload/file_tier_fixture.h"

namespace kvartet {
namespace {

class PageReaderTest : public testing::TestWithParam<TierKind> {
 protected:
  RowStoreOptions options() const { return options_for(GetParam(), folder_.path()); }
  TestFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, PageReaderTest, testing::ValuesIn(kFileKinds),
                         [](const testing::TestParamInfo<TierKind>& info) { return std::string(info.param.name); });

constexpr int kRowsPerPage = 16;  // of layer 1: 256 bytes each

// Pages between two that hold rows are read along where that is cheaper than another request: three of 4 KiB at most.
TEST_P(PageReaderTest, AShortGapIsReadAlong) {
  if (GetParam().tier == Tier::kMmap) GTEST_SKIP() << "a map has no reads";
  RowStoreOptions o = options();
  o.file.reading.extent_bytes = 32768;
  RowStore store = made(o);
  ASSERT_TRUE(append_rows(store, 1, 1600).ok());
  struct Case {
    std::vector<std::int32_t> pages;
    std::uint64_t reads, pages_read;
  };
  const Case cases[] = {{{0}, 1, 1},    {{0, 1}, 1, 2},    {{3, 5}, 1, 3},        {{0, 4}, 1, 5},
                        {{0, 5}, 2, 2}, {{0, 4, 7}, 1, 8}, {{0, 4, 8}, 2, 5 + 1}, {{0, 2, 4, 6, 8, 99}, 3, 7 + 1 + 1}};
  for (const Case& c : cases) {
    std::vector<std::int32_t> rows;
    for (const std::int32_t page : c.pages) rows.insert(rows.end(), {page * kRowsPerPage, page * kRowsPerPage + 15});
    Selection s = select_rows(store, 1, {{}, rows});
    const MediumTraffic before = store.traffic().medium;
    ASSERT_TRUE(store.fetch(1, s.fetches).ok());
    EXPECT_EQ(wrong_byte(store, 1, s), "");
    EXPECT_EQ(store.traffic().medium.reads - before.reads, c.reads) << "to page " << c.pages.back();
    EXPECT_EQ(store.traffic().medium.bytes_read - before.bytes_read, c.pages_read * 4096) << "to page " << c.pages.back();
  }
}

// Runs that were appended apart lie apart: what is between them belongs to others and is never taken for the run's own.
TEST_P(PageReaderTest, GapsAreReadAlongWithinARunOnly) {
  RowStore store = made(options());
  for (int i = 0; i < 12; ++i) {
    for (int layer = 0; layer < 3; ++layer) ASSERT_TRUE(append_rows(store, layer, 17 + 8 * (i % 3)).ok());
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (int layer = 0; layer < 3; ++layer) {
      Selection s = random_selection(store, layer, 0.05 + 0.02 * static_cast<double>(seed), seed);
      ASSERT_TRUE(store.fetch(layer, s.fetches).ok());
      EXPECT_EQ(wrong_byte(store, layer, s), "");
    }
  }
}

TEST_P(PageReaderTest, DamageBetweenTheRowsAskedForConcernsNobody) {
  RowStoreOptions kept = options();
  kept.file.keep_as = folder_.file("rows");
  {
    RowStore store = made(kept);
    for (int layer = 0; layer < 3; ++layer) ASSERT_TRUE(append_rows(store, layer, 100).ok());
    ASSERT_TRUE(store.keep().ok());
  }
  int refused = 0;
  const std::uint64_t size = std::filesystem::file_size(kept.file.keep_as);
  for (std::uint64_t at = 4096 + 7; at < size; at += 4096) {
    flip_bit(kept.file.keep_as, at);
    if (auto store = RowStore::open_kept(kept.file.keep_as, options()); store.ok()) {
      Selection s = select_rows(*store, 1, {{3, 2 * kRowsPerPage + 1}, {}});
      const Status status = store->fetch(1, s.fetches);
      refused += status.ok() ? 0 : 1;
      EXPECT_EQ(status.ok() ? wrong_byte(*store, 1, s) : "", "");
    }
    flip_bit(kept.file.keep_as, at);
  }
  EXPECT_EQ(refused, 2);  // the two pages with rows, and not the one between
}

// As the threads of one layer do: one call of the store at a time, but all of them wait for the disk.
TEST_P(PageReaderTest, SeveralThreadsWaitAtOnce) {
  RowStore store = made(options());
  ASSERT_TRUE(append_rows(store, 0, 3000).ok());
  for (std::uint64_t round = 0; round < 40; ++round) {
    Selection s = random_selection(store, 0, 0.1, round);
    std::vector<FetchTicket> tickets;
    for (const HeadFetch& head : s.fetches) {
      auto ticket = store.begin_fetch(0, {&head, 1});
      ASSERT_TRUE(ticket.ok());
      tickets.push_back(std::move(*ticket));
    }
    std::vector<std::thread> threads;
    for (const FetchTicket& ticket : tickets) threads.emplace_back([&ticket] { ticket.wait_for_reads(); });
    for (std::thread& thread : threads) thread.join();
    for (FetchTicket& ticket : tickets) ASSERT_TRUE(store.wait(std::move(ticket)).ok());
    EXPECT_EQ(wrong_byte(store, 0, s), "");
  }
}

// The system gives up what a thread started that has ended: it is read again.
TEST_P(PageReaderTest, ReadsOutliveTheThreadThatStartedThem) {
  RowStore store = made(options());
  ASSERT_TRUE(append_rows(store, 0, 3000).ok());
  for (std::uint64_t round = 0; round < 40; ++round) {
    Selection s = random_selection(store, 0, 0.1, round);
    std::optional<Result<FetchTicket>> ticket;
    std::thread([&] { ticket.emplace(store.begin_fetch(0, s.fetches)); }).join();
    ASSERT_TRUE(ticket->ok());
    ASSERT_TRUE(store.wait(std::move(**ticket)).ok());
    EXPECT_EQ(wrong_byte(store, 0, s), "");
  }
}

// A tier that ends while its reads are under way: they end first or go on, into memory and from a file that are still there.
TEST_P(PageReaderTest, ATicketOutlivesItsStore) {
  for (std::uint64_t round = 0; round < 10; ++round) {
    std::optional<RowStore> store(made(options()));
    ASSERT_TRUE(append_rows(*store, 0, 3000).ok());
    Selection s = random_selection(*store, 0, 0.2, round);
    RowStore shape = made(options());  // for the row's size once the store is gone
    auto ticket = store->begin_fetch(0, s.fetches);
    ASSERT_TRUE(ticket.ok());
    store.reset();
    ticket->wait_for_reads();
    EXPECT_EQ(wrong_byte(shape, 0, s), "");
  }
}

// More requests than the ring holds, from two forks on two threads that share one reader.
TEST_P(PageReaderTest, ForksShareAReaderThatIsFull) {
  RowStore store = made(options());  // eight requests at once
  ASSERT_TRUE(append_rows(store, 2, 400).ok());
  RowStore fork = store.fork();
  const auto work = [](RowStore& mine, std::uint64_t first, std::string* wrong) {
    for (std::uint64_t seed = first; seed < first + 20 && wrong->empty(); ++seed) {
      Selection s = random_selection(mine, 2, 0.2, seed);
      const Status status = mine.fetch(2, s.fetches);
      *wrong = status.ok() ? wrong_byte(mine, 2, s) : status.message();
    }
  };
  std::string wrong_here;
  std::string wrong_there;
  std::thread other([&] { work(fork, 100, &wrong_there); });
  work(store, 0, &wrong_here);
  other.join();
  EXPECT_EQ(wrong_here, "");
  EXPECT_EQ(wrong_there, "");
}

}  // namespace
}  // namespace kvartet
