#include "offload/row_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace kvartet {
namespace {

using Rows = std::vector<std::int32_t>;

struct Outcome {
  int hits = 0;
  int kept = 0;
};

// One fetch: look up, then admit what was missing.
Outcome use(RowCache& cache, const Rows& rows, int capacity) {
  Rows slots;
  cache.look_up(rows, &slots);
  Rows missing;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (slots[i] == RowCache::kNone) missing.push_back(rows[i]);
  }
  Outcome outcome = {.hits = static_cast<int>(rows.size() - missing.size())};
  cache.admit(missing, capacity, &slots);
  for (const std::int32_t slot : slots) outcome.kept += slot != RowCache::kNone ? 1 : 0;
  return outcome;
}

TEST(RowCache, TheSameSelectionTwiceIsAllHits) {
  RowCache cache;
  EXPECT_EQ(use(cache, {1, 5, 9}, 3).hits, 0);
  EXPECT_EQ(use(cache, {1, 5, 9}, 3).hits, 3);
}

// Kernel prototypes 5 (e): plain LRU with as many slots as the selection evicts rows that the same step needs.
TEST(RowCache, RowsOfTheCurrentSelectionAreNeverEvicted) {
  RowCache cache;
  use(cache, {0, 1, 2, 3}, 4);
  const Outcome outcome = use(cache, {2, 3, 10, 11, 12, 13}, 4);  // four new rows, two slots to take
  EXPECT_EQ(outcome.hits, 2);
  EXPECT_EQ(outcome.kept, 2);
  EXPECT_EQ(use(cache, {2, 3, 10, 11}, 4).hits, 4);
}

TEST(RowCache, TheLongestUnusedRowGoesFirst) {
  RowCache cache;
  use(cache, {1, 2, 3}, 3);
  use(cache, {1, 3}, 3);
  use(cache, {7}, 3);  // takes the place of 2
  EXPECT_EQ(use(cache, {1, 3, 7}, 3).hits, 3);
  EXPECT_EQ(use(cache, {2}, 3).hits, 0);
}

TEST(RowCache, NoCapacityKeepsNothing) {
  RowCache cache;
  EXPECT_EQ(use(cache, {1, 2}, 0).kept, 0);
  EXPECT_EQ(use(cache, {1, 2}, 0).hits, 0);
}

TEST(RowCache, RowsThatDidNotArriveAreForgotten) {
  RowCache cache;
  Rows slots;
  cache.look_up(Rows{4, 8}, &slots);
  cache.admit(Rows{4, 8}, 2, &slots);
  cache.forget(slots);
  EXPECT_EQ(cache.rows(), 0);
  EXPECT_EQ(use(cache, {4, 8}, 2).hits, 0);
  EXPECT_EQ(cache.slots(), 2);  // the slots are used again
}

// Against the obvious model: a map from row to last use, evicted one by one.
TEST(RowCache, EqualsTheObviousModel) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    RowCache cache;
    std::map<std::int32_t, int> model;  // row -> last use
    std::map<std::int32_t, std::int32_t> slot_of;
    const int capacity = 1 + static_cast<int>(seed * 3);
    for (int step = 1; step <= 60; ++step) {
      std::set<std::int32_t> chosen;
      for (std::uint64_t i = 0; i < 20; ++i)
        chosen.insert(static_cast<std::int32_t>((seed * 7919 + i * i * 31 + static_cast<std::uint64_t>(step) * i * 17) % 97));
      const Rows rows(chosen.begin(), chosen.end());
      Rows slots;
      cache.look_up(rows, &slots);
      Rows missing;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto known = model.find(rows[i]);
        ASSERT_EQ(slots[i] != RowCache::kNone, known != model.end()) << "seed " << seed << " step " << step << " row " << rows[i];
        if (known != model.end()) {
          EXPECT_EQ(slots[i], slot_of[rows[i]]);
          known->second = step;
        } else {
          missing.push_back(rows[i]);
        }
      }
      cache.admit(missing, capacity, &slots);
      for (std::size_t i = 0; i < missing.size(); ++i) {
        if (static_cast<int>(model.size()) == capacity) {
          auto oldest =
              std::min_element(model.begin(), model.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
          if (oldest->second == step) {
            EXPECT_EQ(slots[i], RowCache::kNone);
            continue;
          }
          model.erase(oldest);
        }
        model[missing[i]] = step;
        ASSERT_NE(slots[i], RowCache::kNone);
        slot_of[missing[i]] = slots[i];
      }
      std::set<std::int32_t> used;
      for (const auto& [row, last] : model) used.insert(slot_of[row]);
      EXPECT_EQ(used.size(), model.size()) << "two rows in one slot";
      EXPECT_EQ(cache.rows(), static_cast<int>(model.size()));
      EXPECT_LE(cache.slots(), capacity);
    }
  }
}

}  // namespace
}  // namespace kvartet
