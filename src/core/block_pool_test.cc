#include "core/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace kvartet {
namespace {

constexpr std::size_t kHugePage = BlockPool::kHugePage;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kUsesSlabs = false;
#else
constexpr bool kUsesSlabs = true;
#endif

bool is_zero(const std::byte* block, std::size_t size) {
  return std::all_of(block, block + size, [](std::byte b) { return b == std::byte{0}; });
}

TEST(BlockPool, BlocksAreAlignedZeroAndApart) {
  for (const std::size_t size : {1UL, 100UL, 16384UL, 16400UL, 100001UL, 700000UL, 3UL << 20}) {
    BlockPool pool;
    std::vector<std::byte*> blocks;
    for (std::size_t i = 0; i < 9'000'000 / std::max<std::size_t>(size, 4000) + 3; ++i) {
      std::byte* const block = pool.take(size);
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % BlockPool::kAlign, 0U);
      ASSERT_TRUE(is_zero(block, size)) << "size " << size << ", block " << i;
      std::fill_n(block, size, static_cast<std::byte>(i + 1));
      blocks.push_back(block);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto mark = static_cast<std::byte>(i + 1);
      EXPECT_TRUE(std::all_of(blocks[i], blocks[i] + size, [&](std::byte b) { return b == mark; }))
          << "size " << size << ", block " << i;
    }
    for (std::byte* block : blocks) pool.give(block, size);
    EXPECT_EQ(pool.slab_bytes(), 0U) << "size " << size;
  }
}

TEST(BlockPool, ABlockThatComesBackIsZeroAgain) {
  BlockPool pool;
  constexpr std::size_t kSize = 65536;
  std::vector<std::byte*> blocks;
  for (int round = 0; round < 3; ++round) {
    while (blocks.size() < 100) {
      blocks.push_back(pool.take(kSize));
      ASSERT_TRUE(is_zero(blocks.back(), kSize));
      std::fill_n(blocks.back(), kSize, std::byte{0xff});
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) pool.give(std::exchange(blocks[i], nullptr), kSize);
    std::erase(blocks, nullptr);
  }
  for (std::byte* block : blocks) pool.give(block, kSize);
}

TEST(BlockPool, LittleOfOneSizeTakesNoHugePageAndMuchWastesAnEighth) {
  if (!kUsesSlabs) GTEST_SKIP() << "under the address sanitizer blocks are malloc's";
  BlockPool pool;
  for (const std::size_t size : {4096UL, 20000UL, 300000UL}) {
    std::vector<std::byte*> blocks;
    std::size_t held = 0;
    while (held < 20 * kHugePage) {
      blocks.push_back(pool.take(size));
      held += size;
      EXPECT_LE(pool.slab_bytes(), held <= kHugePage ? 0U : held + held / 7 + 2 * kHugePage) << "size " << size;
    }
    EXPECT_GE(pool.slab_bytes(), held - 2 * kHugePage);
    for (std::byte* block : blocks) pool.give(block, size);
  }
  std::byte* const large = pool.take(5 * kHugePage - 100);
  EXPECT_EQ(pool.slab_bytes(), 5 * kHugePage);
  pool.give(large, 5 * kHugePage - 100);
  EXPECT_EQ(pool.slab_bytes(), 0U);
}

TEST(BlockPool, AnySequenceOfTakesAndGivesKeepsBlocksApart) {
  std::mt19937 random(1);
  BlockPool pool;
  const std::size_t sizes[] = {200, 8192, 16384, 131072, 1500000};
  struct Held {
    std::byte* block;
    std::size_t size;
    std::byte mark;
  };
  std::vector<Held> held;
  for (int i = 0; i < 4000; ++i) {
    const bool gives = held.size() > 400 || (!held.empty() && random() % 5 < 2);
    if (gives) {
      std::swap(held[random() % held.size()], held.back());
      const Held last = held.back();
      held.pop_back();
      ASSERT_EQ(last.block[0], last.mark);
      ASSERT_EQ(last.block[last.size - 1], last.mark);
      pool.give(last.block, last.size);
      continue;
    }
    const std::size_t size = sizes[random() % (i % 50 == 0 ? 5 : 4)];
    std::byte* const block = pool.take(size);
    ASSERT_TRUE(block[0] == std::byte{0} && block[size - 1] == std::byte{0});
    const auto mark = static_cast<std::byte>(1 + random() % 255);
    block[0] = block[size - 1] = mark;
    held.push_back({block, size, mark});
  }
  for (const Held& h : held) {
    EXPECT_EQ(h.block[0], h.mark);
    EXPECT_EQ(h.block[h.size - 1], h.mark);
    pool.give(h.block, h.size);
  }
  EXPECT_EQ(pool.slab_bytes(), 0U);
}

TEST(BlockPool, ManyThreadsShareIt) {
  BlockPool pool;
  std::vector<std::thread> team;
  for (int t = 0; t < 8; ++t) {
    team.emplace_back([&pool, t] {
      std::vector<std::byte*> blocks;
      for (int i = 0; i < 1500; ++i) {
        std::byte* const block = pool.take(16384);
        ASSERT_EQ(block[0], std::byte{0});
        block[0] = static_cast<std::byte>(t + 1);
        blocks.push_back(block);
        if (i % 3 == 2) {
          EXPECT_EQ(blocks.front()[0], static_cast<std::byte>(t + 1));
          pool.give(blocks.front(), 16384);
          blocks.erase(blocks.begin());
        }
      }
      for (std::byte* block : blocks) {
        EXPECT_EQ(block[0], static_cast<std::byte>(t + 1));
        pool.give(block, 16384);
      }
    });
  }
  for (std::thread& thread : team) thread.join();
  EXPECT_EQ(pool.slab_bytes(), 0U);
}

TEST(BlockPool, NoMemoryIsNull) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' malloc ends the process instead";
#endif
  BlockPool pool;
  EXPECT_EQ(pool.take(PTRDIFF_MAX - 2 * kHugePage), nullptr);
  std::byte* const block = pool.take(100);
  ASSERT_NE(block, nullptr);
  pool.give(block, 100);
}

}  // namespace
}  // namespace kvartet
