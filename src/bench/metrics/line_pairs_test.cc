#include "bench/metrics/line_pairs.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

using Words = std::vector<std::string>;

TEST(LinePairs, ThingThenValueOnOneLineAsWholeWords) {
  const Words gold{"load_queue: 47", "drop_cache: 12"};
  EXPECT_EQ(line_pairs("load_queue: 47\ndrop_cache: 12", gold, {}), 1);
  EXPECT_EQ(line_pairs("- `drop_cache()` returns 12.\n- `load_queue()` returns 47.", gold, {}), 1);
  EXPECT_EQ(line_pairs("load_queue: 12\ndrop_cache: 47", gold, {}), 0);
  EXPECT_EQ(line_pairs("load_queue\n47\n12 drop_cache", gold, {}), 0);     // another line, the other order
  EXPECT_EQ(line_pairs("load_queue: 470\ndrop_cache2: 12", gold, {}), 0);  // longer words
  EXPECT_EQ(line_pairs("preload_queue: 47, load_queue: 47", gold, {}), 0.5);
  EXPECT_EQ(line_pairs("", gold, {}), 0);
  EXPECT_EQ(line_pairs("x", {}, {}), 0);
  EXPECT_EQ(line_pairs("x", Words{"no pair", ": 3", "a: "}, {}), 0);
}

}  // namespace
}  // namespace kvartet
