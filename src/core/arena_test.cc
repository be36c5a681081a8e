#include "core/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvartet {
namespace {

TEST(Arena, BuffersAreAlignedZeroedAndCounted) {
  const auto arena = Arena::create();
  for (const std::size_t size : {1UL, 63UL, 64UL, 65UL, 4097UL}) {
    auto buffer = arena->allocate(size);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer->size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0U);
    EXPECT_TRUE(std::ranges::all_of(buffer->bytes(), [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(arena->allocated_bytes(), size);  // the size asked for, without the rounding of the allocator
    std::ranges::fill(buffer->bytes(), std::byte{0xff});
  }
  EXPECT_EQ(arena->allocated_bytes(), 0U);
  EXPECT_EQ(arena->peak_bytes(), 4097U);
}

TEST(Arena, ABufferOfNothingIsABuffer) {
  const auto arena = Arena::create(0);
  auto buffer = arena->allocate(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->size(), 0U);
  EXPECT_FALSE(arena->allocate(1).ok());
}

TEST(Arena, TheCapHoldsToTheByteAndNamesTheWayOut) {
  const auto arena = Arena::create(1000);
  EXPECT_EQ(arena->cap_bytes(), 1000U);
  auto first = arena->allocate(900);
  ASSERT_TRUE(first.ok());
  const auto refused = arena->allocate(101);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_NE(refused.status().message().find("101 bytes more, but 900 of its 1000"), std::string::npos);
  EXPECT_NE(refused.status().message().find("--fast-tier-bytes"), std::string::npos);
  EXPECT_EQ(arena->allocated_bytes(), 900U);
  EXPECT_TRUE(arena->allocate(100).ok());
}

TEST(Arena, SizesThatWouldOverflowAreRefused) {
  const auto arena = Arena::create();
  auto held = arena->allocate(64);
  ASSERT_TRUE(held.ok());
  for (const std::size_t size : {~std::size_t{0}, ~std::size_t{0} - 62, ~std::size_t{0} - 128}) {
    const auto buffer = arena->allocate(size);
    ASSERT_FALSE(buffer.ok()) << size;
    EXPECT_EQ(buffer.status().code(), Code::kExhausted);
  }
  const auto empty = Arena::create();
  EXPECT_FALSE(empty->allocate(~std::size_t{0}).ok());
  EXPECT_EQ(empty->allocated_bytes(), 0U);
}

TEST(Arena, TheNthAllocationFailsOnceAndChangesNothing) {
  for (long n = 1; n <= 4; ++n) {
    const auto arena = Arena::create();
    arena->fail_nth_allocation(n);
    std::vector<Buffer> held;
    for (long i = 1; i <= 5; ++i) {
      auto buffer = arena->allocate(10);
      EXPECT_EQ(buffer.ok(), i != n) << "allocation " << i << ", failing " << n;
      if (buffer.ok()) held.push_back(std::move(buffer).value());
    }
    EXPECT_EQ(arena->allocated_bytes(), 40U);
  }
  const auto arena = Arena::create();
  arena->fail_nth_allocation(1);
  arena->fail_nth_allocation(0);
  EXPECT_TRUE(arena->allocate(10).ok());
}

TEST(Buffer, MovingHandsOverTheBytesOnce) {
  const auto arena = Arena::create();
  Buffer a = arena->allocate(100).value();
  a.data()[3] = std::byte{42};
  Buffer b(std::move(a));
  EXPECT_EQ(a.size(), 0U);  // NOLINT: what a moved-from buffer holds is the point
  EXPECT_EQ(b.data()[3], std::byte{42});
  Buffer c = arena->allocate(50).value();
  EXPECT_EQ(arena->allocated_bytes(), 150U);
  c = std::move(b);
  EXPECT_EQ(arena->allocated_bytes(), 100U);  // the 50 went back
  EXPECT_EQ(c.data()[3], std::byte{42});
  Buffer& same = c;
  c = std::move(same);
  EXPECT_EQ(c.size(), 100U);
  c = Buffer();
  EXPECT_EQ(arena->allocated_bytes(), 0U);
}

TEST(Buffer, OutlivesEveryOtherHandleOfItsArena) {
  Buffer buffer;
  {
    const auto arena = Arena::create();
    buffer = arena->allocate(10).value();
  }
  std::ranges::fill(buffer.bytes(), std::byte{1});
}

TEST(Arena, CountsExactlyFromManyThreads) {
  constexpr std::size_t kCap = 4 * 100;  // room for four of the eight threads at a time
  const auto arena = Arena::create(kCap);
  std::vector<std::thread> team;
  for (int t = 0; t < 8; ++t) {
    team.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) static_cast<void>(arena->allocate(100).ok());
    });
  }
  for (std::thread& thread : team) thread.join();
  EXPECT_EQ(arena->allocated_bytes(), 0U);
  EXPECT_LE(arena->peak_bytes(), kCap);
  EXPECT_GE(arena->peak_bytes(), 100U);
}

}  // namespace
}  // namespace kvartet
