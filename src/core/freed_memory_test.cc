#include "core/freed_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

namespace kvartet {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = true;
#else
constexpr bool kOwnAllocator = false;
#endif

std::size_t resident() {
  std::size_t total = 0;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> total >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Small blocks with a last one that stays: freed memory below it is not given back by itself.
TEST(FreedMemory, GoesBackToTheSystem) {
#ifdef __GLIBC__
  if (kOwnAllocator) GTEST_SKIP() << "a sanitizer has an allocator of its own";
  constexpr std::size_t kBlock = 64 << 10;
  constexpr std::size_t kBlocks = 1000;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBlock));
    std::memset(blocks.back().get(), 1, kBlock);
  }
  const auto last = std::make_unique<char[]>(kBlock);
  const std::size_t full = resident();
  blocks.clear();
  return_freed_memory();
  EXPECT_LT(resident() + kBlocks * kBlock * 3 / 4, full);
  EXPECT_NE(last, nullptr);
#else
  return_freed_memory();
#endif
}

}  // namespace
}  // namespace kvartet
