// compression.md 5.4: CaM's scalar example, its draws, its targets.
#include "merge/cam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "core/rng.h"

namespace kvartet {
namespace {

std::vector<std::int32_t> ascending(int count) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// a = .30 .05 .10 .15 .40, v = 1 4 2 0 3; row 1 leaves, targets are rows 2 and 3.
TEST(Cam, Section54Example) {
  const std::vector<float> a = {.30F, .05F, .10F, .15F, .40F};
  const double v[] = {1, 4, 2, 0, 3};
  const double mean = (static_cast<double>(a[2]) + static_cast<double>(a[3])) / 2;
  EXPECT_NEAR(mean, 0.125, 1e-8);
  const double pr = cam_probability(static_cast<double>(a[1]), mean);
  EXPECT_NEAR(pr, 0.4, 1e-7);
  double full = 0;
  for (std::size_t t = 0; t < 5; ++t) full += static_cast<double>(a[t]) * v[t];
  EXPECT_NEAR(full, 1.90, 1e-6);
  const double evicted = full - static_cast<double>(a[1]) * v[1];
  EXPECT_NEAR(evicted, 1.70, 1e-6);
  EXPECT_NEAR(evicted / 0.95, 1.7895, 1e-4);
  // The drawn merge adds v / 2 to both targets.
  double merged = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<Merge> plan = cam_plan(a, ascending(5), std::vector<std::int32_t>{1}, {.merge = 2, .seed = seed});
    if (plan.empty()) continue;
    EXPECT_EQ(plan, (std::vector<Merge>{{2, 1, 0.5F}, {3, 1, 0.5F}}));
    merged = evicted;
    for (const Merge& m : plan)
      merged += static_cast<double>(a[static_cast<std::size_t>(m.target)]) * static_cast<double>(m.weight) * v[m.source];
  }
  EXPECT_NEAR(merged, 2.20, 1e-6);
  EXPECT_GT(std::abs(merged - full), std::abs(evicted - full));  // worse than evicting, since .125 > 2 * .05
  EXPECT_NEAR(pr * merged + (1 - pr) * evicted, 1.90, 1e-6);     // in expectation the full output
  EXPECT_NEAR((pr * merged + (1 - pr) * evicted) / 0.95, 2.00, 1e-6);
}

// The masked output after row `source` left and its merges, if any, were carried out.
double masked_output(const std::vector<float>& a, const std::vector<double>& v, std::int32_t source,
                     const std::vector<Merge>& merges) {
  double out = 0;
  for (std::size_t t = 0; t < a.size(); ++t)
    out += static_cast<std::int32_t>(t) == source ? 0.0 : static_cast<double>(a[t]) * v[t];
  for (const Merge& m : merges)
    out += static_cast<double>(a[static_cast<std::size_t>(m.target)]) * static_cast<double>(m.weight) *
           v[static_cast<std::size_t>(m.source)];
  return out;
}

// 5.4: where attention is equal everywhere a merge changes nothing: every row has as much to give as it takes.
TEST(Cam, Section54EqualAttentionChangesNothing) {
  Rng rng(3);
  const std::vector<float> a(16, 1.0F / 16);
  std::vector<double> v;
  for (int i = 0; i < 16; ++i) v.push_back(rng.normal());
  const double full = masked_output(a, v, -1, {});
  for (std::int32_t source = 0; source < 15; ++source) {
    for (const int m : {1, 2, 4, 32}) {
      const std::vector<Merge> plan = cam_plan(a, ascending(16), std::vector<std::int32_t>{source}, {.merge = m});
      ASSERT_FALSE(plan.empty());
      EXPECT_NEAR(masked_output(a, v, source, plan), full, 1e-6) << source << " into " << m;
    }
  }
}

// 5.1, with attention that is the running sums: below pr = 1 the expected change is zero; at pr = 1 it is (mean - a_i) v_i, never
// larger than eviction's a_i v_i.
TEST(Cam, Section51ExpectedChangeOfTheOutput) {
  Rng rng(4);
  int certain = 0;
  int drawn = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> a;
    std::vector<double> v;
    for (int i = 0; i < 12; ++i) {
      a.push_back(static_cast<float>(rng.uniform()));
      v.push_back(rng.normal());
    }
    const auto source = static_cast<std::int32_t>(rng.below(8));
    const auto at = static_cast<std::size_t>(source);
    double mean = 0;
    for (std::size_t t = at + 1; t < at + 5; ++t) mean += static_cast<double>(a[t]) / 4;
    const double full = masked_output(a, v, -1, {});
    const double evicted = masked_output(a, v, source, {});
    std::vector<Merge> merges;
    for (std::uint64_t seed = 0; merges.empty() && seed < 1000; ++seed)
      merges = cam_plan(a, ascending(12), std::vector<std::int32_t>{source}, {.merge = 4, .seed = seed});
    if (merges.empty()) continue;  // a row without weight
    const double merged = masked_output(a, v, source, merges);
    const double own = static_cast<double>(a[at]);
    const double pr = cam_probability(own, mean);
    EXPECT_NEAR(merged - full, (mean - own) * v[at], 1e-6);
    if (pr < 1) {
      ++drawn;
      EXPECT_NEAR(pr * merged + (1 - pr) * evicted, full, 1e-6);
    } else {
      ++certain;
      EXPECT_LE(std::abs(merged - full), std::abs(evicted - full) + 1e-9);
    }
  }
  EXPECT_GT(certain, 50);
  EXPECT_GT(drawn, 50);
}

// 5.3: clamped to [0, 1]; 0/0 -> 0, x/0 -> 1; a row without weight never merges.
TEST(Cam, Section53Probability) {
  EXPECT_EQ(cam_probability(0, 0), 0);
  EXPECT_EQ(cam_probability(0, 5), 0);
  EXPECT_EQ(cam_probability(3, 0), 1);
  EXPECT_EQ(cam_probability(3, 2), 1);
  EXPECT_EQ(cam_probability(1, 2), 0.5);
  EXPECT_EQ(cam_probability(std::nan(""), 2), 0);
  EXPECT_EQ(cam_probability(1, std::nan("")), 1);
  EXPECT_EQ(cam_probability(std::numeric_limits<double>::infinity(), 2), 1);
}

// 5.4: the frequency over 10,000 draws is within 3 sigma of pr, over positions and over seeds; the same seed draws the same.
TEST(Cam, Section54FrequencyOfDraws) {
  for (const double pr : {0.1, 0.4, 0.9}) {
    int by_position = 0;
    int by_seed = 0;
    for (int i = 0; i < 10000; ++i) {
      const std::vector<float> sums = {static_cast<float>(pr), 1, 1};
      const std::vector<std::int32_t> positions = {i, i + 1, i + 2};
      const std::vector<std::int32_t> leaving = {0};
      by_position += cam_plan(sums, positions, leaving, {.merge = 2, .seed = 7}).empty() ? 0 : 1;
      by_seed +=
          cam_plan(sums, std::vector<std::int32_t>{5, 6, 7}, leaving, {.merge = 2, .seed = static_cast<std::uint64_t>(i)}).empty()
              ? 0
              : 1;
      ASSERT_EQ(cam_plan(sums, positions, leaving, {.merge = 2, .seed = 7}),
                cam_plan(sums, positions, leaving, {.merge = 2, .seed = 7}));
    }
    const double sigma = std::sqrt(10000 * pr * (1 - pr));
    EXPECT_NEAR(by_position, 10000 * pr, 3 * sigma);
    EXPECT_NEAR(by_seed, 10000 * pr, 3 * sigma);
  }
}

// Heads and layers draw on their own.
TEST(Cam, DrawsDifferByLayerAndHead) {
  std::map<std::pair<int, int>, std::vector<bool>> drawn;
  for (const auto& [layer, head] : {std::pair{0, 0}, {0, 1}, {1, 0}}) {
    for (int i = 0; i < 64; ++i) {
      const std::vector<std::int32_t> positions = {i, i + 1};
      drawn[{layer, head}].push_back(cam_plan(std::vector<float>{.5F, 1}, positions, std::vector<std::int32_t>{0},
                                              {.merge = 1, .seed = 1, .layer = layer, .kv_head = head})
                                         .empty());
    }
  }
  EXPECT_NE((drawn[{0, 0}]), (drawn[{0, 1}]));
  EXPECT_NE((drawn[{0, 0}]), (drawn[{1, 0}]));
}

// 5.3: targets are the next m staying rows by position, whatever the order of rows; fewer at the end; none: plain drop.
TEST(Cam, Section53Targets) {
  const std::vector<float> sums(6, 1.0F);  // equal: pr = 1
  const std::vector<std::int32_t> positions = {50, 10, 40, 20, 30, 60};
  EXPECT_EQ(cam_plan(sums, positions, std::vector<std::int32_t>{1}, {.merge = 2}),
            (std::vector<Merge>{{3, 1, .5F}, {4, 1, .5F}}));
  EXPECT_EQ(cam_plan(sums, positions, std::vector<std::int32_t>{0}, {.merge = 2}), (std::vector<Merge>{{5, 0, 1.0F}}));
  EXPECT_TRUE(cam_plan(sums, positions, std::vector<std::int32_t>{5}, {.merge = 2}).empty());
  // Leaving rows are no targets; sources come in ascending position.
  EXPECT_EQ(cam_plan(sums, positions, std::vector<std::int32_t>{1, 3}, {.merge = 1}), (std::vector<Merge>{{4, 1, 1.0F}}));
  EXPECT_EQ(cam_plan(sums, positions, std::vector<std::int32_t>{1, 3}, {.merge = 2}),
            (std::vector<Merge>{{4, 1, .5F}, {2, 1, .5F}, {4, 3, .5F}, {2, 3, .5F}}));
  EXPECT_TRUE(cam_plan(sums, positions, std::vector<std::int32_t>{1, 3}, {.merge = 0}).empty());
}

// 5.3: a pass that drops many rows before one block of targets gives each at most m merges, the heaviest first.
TEST(Cam, Section53GrowthIsCapped) {
  constexpr int kRows = 1000;
  std::vector<float> sums(kRows, 1.0F);
  std::vector<std::int32_t> leaving;
  for (int row = 0; row < 900; ++row) {
    sums[static_cast<std::size_t>(row)] = 1.0F + static_cast<float>(row % 100);
    leaving.push_back(row);
  }
  const std::vector<Merge> plan = cam_plan(sums, ascending(kRows), leaving, {.merge = 8});
  std::map<int, double> grown;
  for (const Merge& m : plan) {
    grown[m.target] += static_cast<double>(m.weight);
    EXPECT_GE(m.source % 100, 98);
  }
  EXPECT_EQ(plan.size(), 64U);
  for (const auto& [target, weight] : grown) EXPECT_EQ(weight, 1.0) << target;
}

// 5.4: the total added over the targets of a source is its value, exactly.
TEST(Cam, Section54SumRule) {
  for (const int m : {1, 2, 4, 8, 32}) {
    double total = 0;
    for (const Merge& merge : cam_plan(std::vector<float>(64, 1.0F), ascending(64), std::vector<std::int32_t>{3}, {.merge = m}))
      total += static_cast<double>(merge.weight);
    EXPECT_EQ(total, 1.0) << m;
  }
}

}  // namespace
}  // namespace kvartet
