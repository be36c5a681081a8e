// InfiniGen's choice of channels, and its skew (offloading.md 6).
#include "offload/partial_channels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/normals_fixture.h"
#include "core/rng.h"

namespace kvartet {
namespace {

double score(const KeyProjection& made, const float* q, std::size_t dim, std::size_t landmark) {
  const std::size_t width = made.query.size() / dim;
  double sum = 0;
  for (std::size_t i = 0; i < width; ++i) {
    double feature = 0;
    for (std::size_t c = 0; c < dim; ++c) feature += static_cast<double>(made.query[i * dim + c]) * q[c];
    sum += feature * made.keys[landmark * width + i];
  }
  return sum;
}

double exact(const float* a, const float* b, std::size_t dim) {
  double sum = 0;
  for (std::size_t c = 0; c < dim; ++c) sum += static_cast<double>(a[c]) * b[c];
  return sum;
}

TEST(PartialChannels, WidthIsTwiceTheShareAndAtMostAll) {
  EXPECT_EQ(partial_width(0.2, 64), 26);   // 12.8 is 13
  EXPECT_EQ(partial_width(0.2, 128), 52);  // 25.6 is 26
  EXPECT_EQ(partial_width(0.25, 64), 32);
  EXPECT_EQ(partial_width(1e-6, 64), 2);
  EXPECT_EQ(partial_width(0.6, 64), 64);
  EXPECT_EQ(partial_width(1, 64), 64);
}

// By hand: queries are largest in channel 2, keys in channel 0, and magnitudes count, not sums.
TEST(PartialChannels, ChoosesByQueriesThenByKeys) {
  const std::vector<float> keys = {9, 1, 5, 0, -9, 1, 5, 0};
  const std::vector<float> queries = {0, 1, 4, 0, 0, 1, -4, 0};
  const KeyProjection made = partial_channels({keys.data(), 2, 4}, {queries.data(), 2, 4}, 0.25, Skew::kNone);
  EXPECT_EQ(made.query, (std::vector<float>{1, 0, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(made.keys, (std::vector<float>{9, 5, -9, 5}));
}

// The skew is orthogonal: with all columns nothing changes.
TEST(PartialChannels, AllColumnsGiveExactLogits) {
  const std::vector<float> keys = normals(50 * 32, 1);
  const std::vector<float> queries = normals(40 * 32, 2);
  const std::vector<float> q = normals(32, 3);
  for (const Skew skew : {Skew::kPrompt, Skew::kNone}) {
    const KeyProjection made = partial_channels({keys.data(), 50, 32}, {queries.data(), 40, 32}, 1, skew);
    ASSERT_EQ(made.query.size(), 32U * 32);
    for (std::size_t t = 0; t < 50; ++t)
      EXPECT_NEAR(score(made, q.data(), 32, t), exact(q.data(), keys.data() + t * 32, 32), 1e-4);
  }
}

// Queries along one diagonal: no channel says much by itself, the first skewed one says everything.
TEST(PartialChannels, SkewFindsTheDirectionThatQueriesShare) {
  std::vector<float> queries;
  Rng rng(4);
  for (int t = 0; t < 40; ++t) {
    const auto length = static_cast<float>(1 + rng.below(5));
    for (int c = 0; c < 32; ++c) queries.push_back(c % 2 == 0 ? length : -length);
  }
  const std::vector<float> keys = normals(50 * 32, 5);
  const float* const q = queries.data();
  double skewed = 0;
  double plain = 0;
  const KeyProjection with = partial_channels({keys.data(), 50, 32}, {q, 40, 32}, 0.03, Skew::kPrompt);
  const KeyProjection without = partial_channels({keys.data(), 50, 32}, {q, 40, 32}, 0.03, Skew::kNone);
  EXPECT_EQ(with.query.size(), 2U * 32);
  for (std::size_t t = 0; t < 50; ++t) {
    const double logit = exact(q, keys.data() + t * 32, 32);
    skewed += std::abs(score(with, q, 32, t) - logit);
    plain += std::abs(score(without, q, 32, t) - logit);
  }
  EXPECT_LT(skewed / 50, 1e-3);
  EXPECT_GT(plain / 50, 1);
}

}  // namespace
}  // namespace kvartet
