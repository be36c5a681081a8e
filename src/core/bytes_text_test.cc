#include "core/bytes_text.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

TEST(BytesText, PowersOf1024InTheLargestUnitBelowAThousand) {
  EXPECT_EQ(bytes_text(1536.0), "1.50 KiB");
  EXPECT_EQ(bytes_text(std::size_t{36} << 20), "36.0 MiB");
  EXPECT_EQ(bytes_text(999.0 * 1024), "999.0 KiB");
  EXPECT_EQ(bytes_text(1000.0 * 1024), "0.98 MiB");
  EXPECT_EQ(bytes_text(std::size_t{24} << 30), "24.0 GiB");
  EXPECT_EQ(bytes_text(0.0), "0.00 KiB");
}

}  // namespace
}  // namespace kvartet
