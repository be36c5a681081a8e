// T1 of compression.md: attention over segments, merged, equals attention in one pass; empty segments change nothing.
#include "attention/softmax_partial.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_fixture.h"

namespace kvartet {
namespace {

constexpr int kHeadDim = 16;
constexpr int kQueries = 2;

struct OwnedPartial {
  std::array<float, kQueries> max;
  std::array<float, kQueries> sum;
  std::array<float, kQueries * kHeadDim> acc;
  OwnedPartial() { clear_partial(view()); }
  SoftmaxPartial view() { return {max.data(), sum.data(), acc.data(), kQueries, kHeadDim}; }
};

class SegmentMerge : public testing::Test {
 protected:
  static constexpr std::size_t kRows = 300;
  std::vector<float> q_ = random_rows(kQueries * kHeadDim, 4.0, 1);
  std::vector<float> keys_ = random_rows(kRows * kHeadDim, 1.0, 2);
  std::vector<float> values_ = random_rows(kRows * kHeadDim, 1.0, 3);
  MatView<const float> key_rows_{keys_.data(), kRows, kHeadDim};
  MatView<const float> value_rows_{values_.data(), kRows, kHeadDim};

  OwnedPartial segment(std::size_t begin, std::size_t end) const {
    OwnedPartial part;
    if (begin == end) return part;
    for (std::size_t query = 0; query < kQueries; ++query) {
      const ReferenceAttention exact(q_.data() + query * kHeadDim, key_rows_, value_rows_, begin, end);
      part.max[query] = static_cast<float>(exact.max);
      part.sum[query] = static_cast<float>(exact.sum);
      for (std::size_t c = 0; c < kHeadDim; ++c) part.acc[query * kHeadDim + c] = static_cast<float>(exact.out[c] * exact.sum);
    }
    return part;
  }

  double error_of_split(std::span<const std::size_t> borders) const {
    OwnedPartial merged;
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      OwnedPartial part = segment(borders[i], borders[i + 1]);
      merge_partial(merged.view(), part.view());
    }
    std::array<float, kQueries * kHeadDim> out;
    finish_partial(merged.view(), {out.data(), kQueries, kHeadDim});
    RelativeError error;
    for (std::size_t query = 0; query < kQueries; ++query) {
      const ReferenceAttention exact(q_.data() + query * kHeadDim, key_rows_, value_rows_, 0, kRows);
      error.add(out.data() + query * kHeadDim, exact.out);
    }
    return error.value();
  }
};

TEST_F(SegmentMerge, T1RandomSplitsEqualOnePass) {
  Rng rng(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::size_t> borders{0, kRows};
    for (std::uint64_t cuts = rng.below(4); cuts > 0; --cuts) borders.push_back(rng.below(kRows + 1));
    std::sort(borders.begin(), borders.end());
    EXPECT_LT(error_of_split(borders), 1e-6);
  }
}

TEST_F(SegmentMerge, T1EmptySegmentsAnywhere) {
  const std::array<std::size_t, 3> plain{0, 100, kRows};
  const std::array<std::size_t, 7> with_empty{0, 0, 100, 100, 100, kRows, kRows};
  const double error = error_of_split(with_empty);
  EXPECT_LT(error, 1e-6);
  EXPECT_EQ(error, error_of_split(plain));
}

TEST_F(SegmentMerge, MergingAnEmptyPartKeepsTheBits) {
  OwnedPartial part = segment(3, 40);
  const OwnedPartial before = part;
  OwnedPartial empty;  // skipped, not evaluated: what it holds besides its maximum must not matter
  empty.sum.fill(std::nanf(""));
  empty.acc.fill(std::nanf(""));
  merge_partial(part.view(), empty.view());
  EXPECT_EQ(before.max, part.max);
  EXPECT_EQ(before.sum, part.sum);
  EXPECT_EQ(before.acc, part.acc);
}

TEST_F(SegmentMerge, NothingAtAllGivesZeros) {
  OwnedPartial merged;
  OwnedPartial empty;
  merge_partial(merged.view(), empty.view());
  EXPECT_EQ(merged.max[0], -std::numeric_limits<float>::infinity());
  std::array<float, kQueries * kHeadDim> out;
  out.fill(5.0F);
  finish_partial(merged.view(), {out.data(), kQueries, kHeadDim});
  for (const float x : out) EXPECT_EQ(x, 0.0F);
}

TEST_F(SegmentMerge, LogitsFarApartDoNotOverflow) {
  OwnedPartial low = segment(0, 10);
  OwnedPartial high = segment(10, 20);
  for (float& m : low.max) m -= 1e6F;
  for (float& m : high.max) m += 1e6F;
  OwnedPartial merged = low;
  merge_partial(merged.view(), high.view());
  EXPECT_EQ(merged.sum, high.sum);
  EXPECT_EQ(merged.acc, high.acc);
}

}  // namespace
}  // namespace kvartet
