#include "core/counted.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvartet {
namespace {

TEST(Counted, OnlyOneIsSingular) {
  EXPECT_EQ(counted(0, "run"), "0 runs");
  EXPECT_EQ(counted(1, "run"), "1 run");
  EXPECT_EQ(counted(2, "run"), "2 runs");
  EXPECT_EQ(counted(-1, "run"), "-1 runs");
  EXPECT_EQ(counted(std::uint64_t{1} << 40, "byte"), "1099511627776 bytes");
  EXPECT_EQ(counted(1, "query", "queries"), "1 query");
  EXPECT_EQ(counted(3, "query", "queries"), "3 queries");
}

}  // namespace
}  // namespace kvartet
