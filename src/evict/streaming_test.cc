// StreamingLLM against compression.md 6.1: the rows of its example, and slots that hold them while tokens come one by one.
#include "evict/streaming.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvartet {
namespace {

TEST(Streaming, Section61Example) {
  const KeepPlan plan = streaming_plan(20, 2, {.sinks = 4, .window = 8});
  const std::vector<std::int32_t> expected = {0, 1, 2, 3, 12, 13, 14, 15, 16, 17, 18, 19};
  EXPECT_EQ(plan.rows, (std::vector<std::vector<std::int32_t>>{expected, expected}));
}

TEST(Streaming, Section61NoOpWithinTheBound) {
  const std::vector<std::int32_t> twelve = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  EXPECT_EQ(streaming_plan(12, 1, {.sinks = 4, .window = 8}).rows.front(), twelve);
  EXPECT_EQ(streaming_plan(2, 1, {.sinks = 4, .window = 8}).rows.front(), (std::vector<std::int32_t>{0, 1}));
  EXPECT_TRUE(streaming_plan(0, 1, {}).rows.front().empty());
}

// 6.1: slots, positions and the plan are three statements of one rule.
TEST(Streaming, SlotsHoldExactlyThePlan) {
  for (const StreamingOptions& options :
       {StreamingOptions{4, 8}, StreamingOptions{0, 1}, StreamingOptions{0, 5}, StreamingOptions{7, 1}}) {
    for (int seen = 0; seen < 60; ++seen) {
      std::vector<std::int32_t> held;
      for (int slot = 0; slot < streaming_rows(seen, options); ++slot) {
        const int position = streaming_position(slot, seen, options);
        EXPECT_EQ(streaming_slot(position, options), slot);
        held.push_back(position);
      }
      std::sort(held.begin(), held.end());
      EXPECT_EQ(held, streaming_plan(seen, 1, options).rows.front()) << seen;
    }
  }
}

// 6.1: sinks never move, and a new token takes the slot of the one that leaves.
TEST(Streaming, OneSlotChangesPerToken) {
  const StreamingOptions options{.sinks = 4, .window = 8};
  for (int seen = 12; seen < 100; ++seen) {
    for (int slot = 0; slot < 12; ++slot) {
      const int before = streaming_position(slot, seen, options);
      const int after = streaming_position(slot, seen + 1, options);
      EXPECT_EQ(after, slot == streaming_slot(seen, options) ? seen : before);
    }
  }
}

}  // namespace
}  // namespace kvartet
