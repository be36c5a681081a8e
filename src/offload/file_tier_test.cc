#include "offload/file_tier.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "core/faulty_file_system.h"
#include "core/memory_file_system.h"
#include "offload/file_tier_fixture.h"

namespace kvartet {
namespace {

using std::filesystem::file_size;

class FileTierTest : public testing::TestWithParam<TierKind> {
 protected:
  RowStoreOptions options() const { return options_for(GetParam(), folder_.path()); }
  RowStoreOptions kept_options(const std::string& name) const {
    RowStoreOptions kept = options();
    kept.file.keep_as = folder_.file(name);
    return kept;
  }
  // A store of `rows` rows everywhere, kept as `name`.
  void keep_store(const std::string& name, int rows) const {
    RowStore store = made(kept_options(name));
    for (int layer = 0; layer < store.layers(); ++layer) ASSERT_TRUE(append_rows(store, layer, rows).ok());
    const Status status = store.keep();
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(wrong_row(store), "");
  }
  TestFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, FileTierTest, testing::ValuesIn(kFileKinds),
                         [](const testing::TestParamInfo<TierKind>& info) { return std::string(info.param.name); });

TEST(FileTier, PagesAreWholeAndHoldAtLeastOneRow) {
  EXPECT_EQ(page_bytes_for(1), 4096u);
  EXPECT_EQ(page_bytes_for(4096), 4096u);
  EXPECT_EQ(page_bytes_for(4097), 8192u);
  EXPECT_EQ(rows_per_page(256), 16);
  EXPECT_EQ(rows_per_page(66), 62);
  EXPECT_EQ(rows_per_page(5000), 1);
}

TEST_P(FileTierTest, SaysHowItIsReached) {
  const RowStore store = made(options());
  const std::string medium = store.medium();
  if (GetParam().tier == Tier::kMmap) {
    EXPECT_EQ(medium, "memory map");
    return;
  }
  // Where io_uring is forbidden or the file system has no direct reads, it says so instead.
  const bool uring = GetParam().reader == DiskReader::kUring;
  EXPECT_TRUE(medium.starts_with(uring ? "io_uring" : "pread on 3 threads") || medium.find("no io_uring") != std::string::npos)
      << medium;
  EXPECT_NE(medium.find("the page cache"), std::string::npos);
}

TEST_P(FileTierTest, AFileThatIsNotKeptHasNoName) {
  RowStore store = made(options());
  ASSERT_TRUE(append_rows(store, 0, 200).ok());
  EXPECT_EQ(folder_.entries(), 0);
  EXPECT_EQ(store.keep().code(), Code::kUsage);
}

TEST_P(FileTierTest, AKeptFileGivesTheSameRowsLater) {
  for (const int rows : {0, 1, 16, 200}) {
    keep_store("rows", rows);
    EXPECT_EQ(folder_.entries(), 1);
    auto again = RowStore::open_kept(folder_.file("rows"), options());
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->layers(), 3);
    EXPECT_EQ(again->row_bytes(2), 5000u);
    EXPECT_EQ(again->rows(0, 2), rows);
    EXPECT_EQ(wrong_row(*again), "");
    EXPECT_EQ(append_rows(*again, 0, 1).code(), Code::kUsage);
    EXPECT_EQ(again->bytes().slow.live, static_cast<std::size_t>(rows) * (3 * 66 + 2 * 256 + 5000));
  }
}

TEST_P(FileTierTest, AKeptFileTakesNoMoreRowsAlsoFromForks) {
  RowStore store = made(kept_options("rows"));
  ASSERT_TRUE(append_rows(store, 1, 20).ok());
  RowStore fork = store.fork();
  ASSERT_TRUE(append_rows(fork, 1, 3, 1).ok());
  ASSERT_TRUE(store.keep().ok());
  EXPECT_EQ(append_rows(store, 1, 1).code(), Code::kUsage);
  EXPECT_EQ(store.keep().code(), Code::kUsage);
  EXPECT_EQ(append_rows(fork, 1, 100).code(), Code::kUsage);
  EXPECT_EQ(fork.rows(1, 0), 23);
}

TEST_P(FileTierTest, AFileThatWasToBeKeptAndWasNotIsRemoved) {
  {
    RowStore store = made(kept_options("rows"));
    ASSERT_TRUE(append_rows(store, 0, 200).ok());
    EXPECT_EQ(folder_.entries(), 1);
  }
  EXPECT_EQ(folder_.entries(), 0);
}

// Every bit of the file that carries something: flipped, it is found, and file and cause are named.
TEST_P(FileTierTest, AFlippedBitIsFound) {
  keep_store("rows", 40);
  const std::string path = folder_.file("rows");
  const std::uint64_t size = file_size(path);
  int found = 0;
  for (std::uint64_t at = 1; at < size; at += 4093) {
    flip_bit(path, at);
    auto store = RowStore::open_kept(path, options());
    const std::string message = store.ok() ? wrong_row(*store) : store.status().message();
    if (!message.empty()) {
      ++found;
      EXPECT_NE(message.find(path), std::string::npos) << message;
      EXPECT_TRUE(message.find("damaged") != std::string::npos || message.find("not a file of rows") != std::string::npos ||
                  message.find("version") != std::string::npos)
          << message;
    } else {
      EXPECT_TRUE((at >= 56 && at < 4096) || at > size - 4096) << "byte " << at << " is padding of the header or the index";
    }
    flip_bit(path, at);
  }
  EXPECT_GT(found, 20);
}

TEST_P(FileTierTest, AFileThatIsCutShortIsFoundWhenOpened) {
  keep_store("rows", 40);
  const std::string path = folder_.file("rows");
  const std::uint64_t size = file_size(path);
  for (const std::uint64_t left : {size - 1, size - 4096, size / 2, std::uint64_t{4096}, std::uint64_t{100}, std::uint64_t{0}}) {
    std::filesystem::resize_file(path, left);
    const auto store = RowStore::open_kept(path, options());
    ASSERT_FALSE(store.ok());
    EXPECT_NE(store.status().message().find(path), std::string::npos);
  }
  EXPECT_EQ(RowStore::open_kept(folder_.file("none"), options()).status().code(), Code::kBadInput);
  EXPECT_EQ(RowStore::open_kept(folder_.path(), options()).status().code(), Code::kBadInput);
}

TEST_P(FileTierTest, AnotherVersionIsNamed) {
  keep_store("rows", 1);
  flip_bit(folder_.file("rows"), 8);
  const auto store = RowStore::open_kept(folder_.file("rows"), options());
  EXPECT_EQ(store.status().code(), Code::kBadInput);
  EXPECT_NE(store.status().message().find("version 5, but this program reads version 1"), std::string::npos)
      << store.status().message();
}

// A map of a file that somebody cuts short must not end the process: before the fetch, and after pages were read already.
TEST_P(FileTierTest, AFileThatIsCutShortWhileInUseIsAnError) {
  for (const bool read_before : {false, true}) {
    keep_store("rows", 200);
    auto store = RowStore::open_kept(folder_.file("rows"), options());
    ASSERT_TRUE(store.ok());
    if (read_before) {
      EXPECT_EQ(wrong_row(*store), "");
    }
    std::filesystem::resize_file(folder_.file("rows"), 8192);
    Selection all = random_selection(*store, 2, 1.0, 1);
    const Status status = store->fetch(2, all.fetches);
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_NE(status.message().find(folder_.file("rows")), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("cut short"), std::string::npos) << status.message();
  }
}

// The race that no question asked beforehand can exclude: cut and restored by another thread, all the time.
TEST_P(FileTierTest, AFileThatIsCutShortDuringAFetchNeverEndsTheProcessNorGivesWrongRows) {
  keep_store("rows", 200);
  auto store = RowStore::open_kept(folder_.file("rows"), options());
  ASSERT_TRUE(store.ok());
  const std::string path = folder_.file("rows");
  std::ifstream file(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::atomic<bool> stop{false};
  std::thread vandal([&] {
    while (!stop) {
      std::filesystem::resize_file(path, 8192);
      std::ofstream(path, std::ios::binary) << whole;
    }
  });
  for (int i = 0; i < 60; ++i) {
    Selection s = random_selection(*store, 2, 0.3, static_cast<std::uint64_t>(i));
    const Status status = store->fetch(2, s.fetches);
    // tier=mmap trusts pages that it has checked once (docs/decisions/0009), so there only survival is promised here.
    if (status.ok() && GetParam().tier == Tier::kDisk) {
      EXPECT_EQ(wrong_byte(*store, 2, s), "");
    }
  }
  stop = true;
  vandal.join();
}

// A fork may be used, and may end, while another thread uses the store. Their pages never mix.
TEST_P(FileTierTest, ForksWorkOnDifferentThreads) {
  RowStore store = made(options());
  for (int layer = 0; layer < store.layers(); ++layer) ASSERT_TRUE(append_rows(store, layer, 70).ok());
  std::vector<RowStore> forks;
  for (int i = 0; i < 3; ++i) forks.push_back(store.fork());
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(forks.size());
  for (std::size_t i = 0; i < forks.size(); ++i) {
    threads.emplace_back([&, i] {
      RowStore& fork = forks[i];
      const int salt = static_cast<int>(i) + 1;
      for (int round = 0; round < 10; ++round) {
        for (int layer = 0; layer < fork.layers(); ++layer) {
          if (!append_rows(fork, layer, 9, salt).ok()) wrong[i] = "append failed";
          Selection s = random_selection(fork, layer, 0.3, static_cast<std::uint64_t>(round));
          if (!fork.fetch(layer, s.fetches).ok()) wrong[i] = "fetch failed";
          const std::string bad = wrong_byte(fork, layer, s, [&](int row) { return row < 70 ? 0 : salt; });
          if (!bad.empty()) wrong[i] = bad;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& w : wrong) EXPECT_EQ(w, "");
  EXPECT_EQ(wrong_row(store), "");
}

TEST_P(FileTierTest, PagesOfAForkThatEndedAreUsedAgain) {
  RowStoreOptions limited = options();
  limited.file.budget = std::make_shared<ByteBudget>(200000);
  RowStore store = made(limited);
  ASSERT_TRUE(append_rows(store, 1, 160).ok());
  for (int i = 0; i < 20; ++i) {
    RowStore fork = store.fork();
    ASSERT_TRUE(append_rows(fork, 1, 160, i).ok()) << "fork " << i;
    Selection all = random_selection(fork, 1, 1.0, 1);
    ASSERT_TRUE(fork.fetch(1, all.fetches).ok()) << "fork " << i;
    EXPECT_EQ(wrong_byte(fork, 1, all, [&](int row) { return row < 160 ? 0 : i; }), "") << "fork " << i;
  }
  EXPECT_EQ(wrong_row(store), "");
}

// Whoever touches a damaged page first finds it, and so does everybody after: a fork, another fork, the store itself.
TEST_P(FileTierTest, ADamagedPageIsFoundByForksToo) {
  keep_store("rows", 200);
  const std::string path = folder_.file("rows");
  flip_bit(path, 4096 + 66);  // row 1 of the first head
  auto store = RowStore::open_kept(path, options());
  ASSERT_TRUE(store.ok());
  RowStore fork = store->fork();
  RowStore second = fork.fork();
  for (RowStore* reader : {&fork, &*store, &second, &fork}) {
    Selection sound = select_rows(*reader, 0, {{100}, {0}, {0}});
    EXPECT_TRUE(reader->fetch(0, sound.fetches).ok());
    EXPECT_EQ(wrong_byte(*reader, 0, sound), "");
    Selection damaged = select_rows(*reader, 0, {{2}, {}, {}});
    const Status status = reader->fetch(0, damaged.fetches);
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_NE(status.message().find("page at byte 4096"), std::string::npos) << status.message();
  }
}

// docs/decisions/0009: a map verifies a page once. Forks share what was verified, and only that; the disk verifies every time.
TEST_P(FileTierTest, ForksShareWhichPagesOfAMapAreVerified) {
  keep_store("rows", 200);
  const std::string path = folder_.file("rows");
  auto store = RowStore::open_kept(path, options());
  ASSERT_TRUE(store.ok());
  const auto reads = [](RowStore& reader, std::int32_t row) {
    Selection s = select_rows(reader, 0, {{row}, {}, {}});
    return reader.fetch(0, s.fetches).ok();
  };
  RowStore fork = store->fork();
  EXPECT_TRUE(reads(fork, 2));
  flip_bit(path, 4096 + 66);      // the page that was read
  flip_bit(path, 2 * 4096 + 66);  // the one behind it
  const bool once = GetParam().tier == Tier::kMmap;
  EXPECT_EQ(reads(*store, 2), once);
  RowStore second = store->fork();
  EXPECT_EQ(reads(second, 2), once);
  EXPECT_FALSE(reads(second, 62));
  EXPECT_FALSE(reads(fork, 62));
}

// Every n-th operation on files fails, once or from then on: the error is told, other stores go on, no row is ever wrong.
TEST_P(FileTierTest, EveryFailingFileOperationIsToldAndHarmsNobodyElse) {
  for (const bool lasting : {false, true}) {
    for (const bool keeps : {false, true}) {
      if (lasting && !keeps) continue;  // a kept file does all that the other does, and more
      long n = 1;
      for (bool reached = true; reached; ++n) {
        FaultyFileSystem fs(FileSystem::real());
        RowStoreOptions o = keeps ? kept_options("rows") : options();
        o.file.fs = &fs;
        RowStoreOptions other_options = options();
        other_options.file.fs = &fs;
        RowStore other = made(other_options);
        ASSERT_TRUE(append_rows(other, 1, 40).ok());
        fs.arm({.nth = n, .lasting = lasting});
        const auto run = [&]() -> Status {
          KV_ASSIGN(RowStore store, RowStore::create(o));
          for (int layer = 0; layer < 3; ++layer) KV_TRY(append_rows(store, layer, 33));
          for (int layer = 0; layer < 3; ++layer) KV_TRY(append_rows(store, layer, 1));
          for (int layer = 0; layer < 3; ++layer) {
            Selection s = random_selection(store, layer, 0.2, 5);
            KV_TRY(store.fetch(layer, s.fetches));
            EXPECT_EQ(wrong_byte(store, layer, s), "");
          }
          return keeps ? store.keep() : Status();
        };
        const Status status = run();
        reached = fs.failed();
        EXPECT_EQ(status.ok(), !reached) << "operation " << n;
        if (reached) {
          EXPECT_EQ(status.code(), Code::kIo);
          EXPECT_NE(status.message().find(folder_.path()), std::string::npos) << status.message();
        }
        fs.arm({});
        EXPECT_EQ(wrong_row(other), "");
        ASSERT_TRUE(append_rows(other, 1, 40).ok());
        EXPECT_EQ(wrong_row(other), "");
        EXPECT_EQ(o.fast->allocated_bytes(), 0u) << "operation " << n;
        std::filesystem::remove(folder_.file("rows"));
        std::filesystem::remove(folder_.file("rows.unfinished"));  // stays only where its removal was made to fail
      }
      EXPECT_GT(n, 10);
    }
  }
}

TEST_P(FileTierTest, ShortReadsAreReadOn) {
  for (const long nth : {1, 2, 3}) {
    FaultyFileSystem fs(FileSystem::real());
    RowStoreOptions o = options();
    o.file.fs = &fs;
    RowStore store = made(o);
    for (int layer = 0; layer < 3; ++layer) ASSERT_TRUE(append_rows(store, layer, 100).ok());
    fs.arm({.nth = nth, .short_reads = true});
    EXPECT_EQ(wrong_row(store), "");
  }
}

TEST_P(FileTierTest, EveryFailingAllocationOfAFetchIsTold) {
  for (long n = 1;; ++n) {
    RowStoreOptions o = options();
    o.cache_share = 0.5;
    RowStore store = made(o);
    ASSERT_TRUE(append_rows(store, 1, 100).ok());
    RowStore fork = store.fork();  // a map makes its own reader at its first fetch
    Selection s = random_selection(fork, 1, 0.3, 2);
    o.fast->fail_nth_allocation(n);
    const Status status = fork.fetch(1, s.fetches);
    o.fast->fail_nth_allocation(0);
    if (status.ok()) {
      EXPECT_GT(n, 1);
      break;
    }
    EXPECT_EQ(status.code(), Code::kExhausted);
    ASSERT_TRUE(fork.fetch(1, s.fetches).ok());
    EXPECT_EQ(wrong_byte(fork, 1, s), "");
  }
}

// A fetch that nobody waits for does not write to memory that is gone.
TEST_P(FileTierTest, AForgottenTicketIsWaitedFor) {
  RowStore store = made(options());
  ASSERT_TRUE(append_rows(store, 2, 300).ok());
  for (int i = 0; i < 20; ++i) {
    Selection s = random_selection(store, 2, 0.5, static_cast<std::uint64_t>(i));
    auto ticket = store.begin_fetch(2, s.fetches);
    ASSERT_TRUE(ticket.ok());
  }
}

// Neighbours are read together: all rows of a layer need far fewer reads than pages.
TEST_P(FileTierTest, NeighbouringPagesAreOneRead) {
  if (GetParam().tier == Tier::kMmap) GTEST_SKIP() << "a map has no reads";
  RowStore store = made(options());
  ASSERT_TRUE(append_rows(store, 1, 1600).ok());  // 2 heads of 100 pages
  Selection all = random_selection(store, 1, 1.0, 1);
  ASSERT_TRUE(store.fetch(1, all.fetches).ok());
  const MediumTraffic medium = store.traffic().medium;
  EXPECT_EQ(medium.reads, 2u * 25);  // of 16 KiB
  EXPECT_EQ(medium.bytes_read, 200u * 4096);
}

// SIGKILL during offload. Without a name nothing is left; with one, a file not larger than its header says, and refused.
TEST_P(FileTierTest, AKilledProcessLeavesNothingLargerThanItSays) {
  for (const bool keeps : {false, true}) {
    for (const int rows_before : {0, 50, 3000}) {
      int ready[2];
      ASSERT_EQ(::pipe(ready), 0);
      const pid_t child = ::fork();
      if (child == 0) {
        RowStoreOptions o = keeps ? kept_options("rows") : options();
        auto store = RowStore::create(o);
        if (!store.ok() || (rows_before > 0 && !append_rows(*store, 1, rows_before).ok())) ::_exit(1);
        char byte = 1;
        if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
        while (append_rows(*store, 1, 100).ok() && store->rows(1, 0) < 2000000) {}
        ::pause();
      }
      char byte = 0;
      ASSERT_EQ(::read(ready[0], &byte, 1), 1);
      ::usleep(2000);
      ::kill(child, SIGKILL);
      int how = 0;
      ::waitpid(child, &how, 0);
      ::close(ready[0]);
      ::close(ready[1]);
      EXPECT_TRUE(WIFSIGNALED(how));
      EXPECT_EQ(folder_.entries(), keeps ? 1 : 0);
      if (!keeps) continue;
      const std::string left = folder_.file("rows.unfinished");
      const std::string bytes = FileSystem::real().read_file(left).value();
      std::uint64_t largest = 0;
      ASSERT_GE(bytes.size(), 24u);
      std::memcpy(&largest, bytes.data() + 16, sizeof(largest));
      EXPECT_LE(bytes.size(), largest);
      const auto store = RowStore::open_kept(left, options());
      EXPECT_EQ(store.status().code(), Code::kBadInput);
      EXPECT_NE(store.status().message().find("not finished"), std::string::npos) << store.status().message();
      std::filesystem::remove(left);
    }
  }
}

// A file system of 2 MB that two stores share: the one that finds it full ends, the other goes on with what it has.
TEST_P(FileTierTest, TwoStoresOnAFileSystemThatFills) {
  TestFolder mount_point;
  if (::mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs root: " << std::strerror(errno);
  }
  {
    RowStore first = made(options_for(GetParam(), mount_point.path()));
    RowStore second = made(options_for(GetParam(), mount_point.path()));
    ASSERT_TRUE(append_rows(second, 1, 400).ok());
    Status status;
    while (status.ok() && first.rows(1, 0) < 100000) status = append_rows(first, 1, 160);
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_NE(status.message().find(mount_point.path()), std::string::npos) << status.message();
    EXPECT_EQ(wrong_row(first), "");
    EXPECT_EQ(wrong_row(second), "");
    first = made(options_for(kRamKind, ""));  // the sequence ends, and with it its file
    ASSERT_TRUE(append_rows(second, 1, 400).ok());
    EXPECT_EQ(wrong_row(second), "");
  }
  EXPECT_EQ(::umount(mount_point.path().c_str()), 0);
}

// Where files have no descriptor there is no io_uring: said, not silent.
TEST(FileTier, FallsBackToPreadAndSaysWhy) {
  MemoryFileSystem memory;
  RowStoreOptions o = options_for(kFileKinds[1], "");
  o.file.fs = &memory;
  RowStore store = made(o);
  EXPECT_EQ(store.medium(), "pread on 3 threads (no io_uring: the file has no descriptor), through the page cache");
  for (int layer = 0; layer < 3; ++layer) ASSERT_TRUE(append_rows(store, layer, 100).ok());
  EXPECT_EQ(wrong_row(store), "");
  RowStoreOptions map = options_for(kFileKinds[0], "");
  map.file.fs = &memory;
  EXPECT_EQ(RowStore::create(map).status().code(), Code::kIo);
}

}  // namespace
}  // namespace kvartet
