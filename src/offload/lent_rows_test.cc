// Rows that are read where they lie in a mapped file.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "offload/file_tier.h"
#include "offload/file_tier_fixture.h"

namespace kvartet {
namespace {

class LentRowsTest : public testing::Test {
 protected:
  std::string path() const { return folder_.file("rows"); }
  Result<RowStore> kept_store(int rows) const {
    RowStoreOptions options = options_for(kFileKinds[0], folder_.path());
    options.file.keep_as = path();
    RowStore store = made(options);
    for (int layer = 0; layer < store.layers(); ++layer) KV_TRY(append_rows(store, layer, rows));
    KV_TRY(store.keep());
    return RowStore::open_kept(path(), options_for(kFileKinds[0], folder_.path()));
  }

 private:
  TestFolder folder_;
};

// A page is checked before its rows are lent.
TEST_F(LentRowsTest, RowsOfADamagedOrShorterFileAreNotLent) {
  Result<RowStore> store = kept_store(200);
  ASSERT_TRUE(store.ok());
  std::vector<std::int32_t> all(200);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  std::vector<const std::byte*> where(all.size());
  ASSERT_TRUE(store->lend(1, 0, all, where.data()).ok());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t b = 0; b < store->row_bytes(1); ++b) ASSERT_EQ(where[i][b], expected_byte(1, 0, all[i], b)) << i;
  }
  flip_bit(path(), 4096 + 66);  // layer 0, row 1 of the first head
  const auto damaged = store->lend(0, 0, std::vector<std::int32_t>{2, 100}, where.data());
  EXPECT_EQ(damaged.status().code(), Code::kIo);
  EXPECT_NE(damaged.status().message().find("page at byte 4096"), std::string::npos) << damaged.status().message();
  EXPECT_TRUE(store->lend(0, 0, std::vector<std::int32_t>{100}, where.data()).ok());
  std::filesystem::resize_file(path(), 8192);
  const auto lent = store->lend(1, 0, all, where.data());
  EXPECT_EQ(lent.status().code(), Code::kIo);
  EXPECT_NE(lent.status().message().find("cut short"), std::string::npos) << lent.status().message();
}

TEST_F(LentRowsTest, SeveralThreadsMayBorrowRows) {
  Result<RowStore> store = kept_store(200);
  ASSERT_TRUE(store.ok());
  std::vector<std::int32_t> all(200);
  std::iota(all.begin(), all.end(), 0);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<const std::byte*> where(all.size());
      const auto lent = store->lend(1, 0, all, where.data());
      if (!lent.ok() || !lent->lent) ++wrong;
      for (std::size_t i = 0; lent.ok() && i < all.size(); ++i) wrong += where[i][3] != expected_byte(1, 0, all[i], 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(store->traffic().rows_fetched, 4 * all.size());
  EXPECT_GE(store->traffic().medium.bytes_read, 4 * all.size() * store->row_bytes(1));
}

TEST_F(LentRowsTest, AFileThatBecameEmptyLendsNothing) {
  Result<RowStore> store = kept_store(200);
  ASSERT_TRUE(store.ok());
  std::filesystem::resize_file(path(), 0);
  const std::byte* where = nullptr;
  const auto lent = store->lend(1, 0, std::vector<std::int32_t>{0}, &where);
  EXPECT_EQ(lent.status().code(), Code::kIo);
  EXPECT_NE(lent.status().message().find("it has 0 bytes"), std::string::npos) << lent.status().message();
}

}  // namespace
}  // namespace kvartet
