// The index of one query head (offloading.md 6, InfiniGen and LRQK).
#include "offload/projected_index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/normals_fixture.h"

namespace kvartet {
namespace {

constexpr std::size_t kDim = 64;

TEST(ProjectedIndex, ScoresEqualDecodedProducts) {
  const std::vector<float> queries = normals(30 * kDim, 1);
  for (const IndexOptions& options : {IndexOptions{.kind = IndexKind::kPartial, .partial = 0.1},
                                      {.kind = IndexKind::kPartial, .skew = Skew::kNone},
                                      {.kind = IndexKind::kFactors, .factors = 5},
                                      {.kind = IndexKind::kFactors, .chunk = 3, .factors = 32}}) {
    for (const int landmarks : {1, 7, 40}) {
      const std::vector<float> keys = normals(static_cast<std::size_t>(landmarks * options.chunk) * kDim, 2);
      const std::shared_ptr<Arena> arena = Arena::create();
      const ProjectedIndex index =
          ProjectedIndex::build(*arena, options, {keys.data(), keys.size() / kDim, kDim}, {queries.data(), 30, kDim}).value();
      EXPECT_EQ(index.landmarks(), landmarks);
      EXPECT_EQ(index.bytes(), ProjectedIndex::bytes_of(options, kDim, landmarks));
      EXPECT_EQ(arena->allocated_bytes(), index.bytes().allocated);
      const std::vector<float> q = normals(kDim, 3);
      std::vector<float> logits(static_cast<std::size_t>(landmarks));
      index.score(q.data(), 0.125F, logits);
      const auto width = static_cast<std::size_t>(ProjectedIndex::width(options, kDim));
      std::vector<float> turned(width);
      std::vector<float> landmark(width);
      index.turn_query(q.data(), turned.data());
      for (int j = 0; j < landmarks; ++j) {
        index.decode(j, landmark.data());
        double sum = 0;
        double size = 0;
        for (std::size_t i = 0; i < width; ++i) {
          sum += 0.125 * turned[i] * landmark[i];
          size += std::abs(0.125 * turned[i] * landmark[i]);
        }
        EXPECT_NEAR(logits[static_cast<std::size_t>(j)], sum, 1e-5 * size + 1e-6);
      }
    }
  }
}

// Prompts of few rows, windows of one query: matrices without an inverse.
TEST(ProjectedIndex, FewKeysAndQueriesGiveNumbers) {
  constexpr std::size_t kNarrow = 32;
  for (const IndexOptions& options : {IndexOptions{.kind = IndexKind::kPartial},
                                      {.kind = IndexKind::kPartial, .skew = Skew::kNone},
                                      {.kind = IndexKind::kFactors}}) {
    for (const std::size_t keys : {std::size_t{2}, std::size_t{5}, std::size_t{200}}) {
      for (const std::size_t queries : {std::size_t{1}, std::size_t{5}}) {
        for (const float size : {1e-6F, 1.0F, 1000.0F}) {
          std::vector<float> k = normals(keys * kNarrow, 1);
          std::vector<float> q = normals(queries * kNarrow, 2);
          for (float& x : k) x *= size;
          for (float& x : q) x *= size;
          const std::shared_ptr<Arena> arena = Arena::create();
          const ProjectedIndex index =
              ProjectedIndex::build(*arena, options, {k.data(), keys, kNarrow}, {q.data(), queries, kNarrow}).value();
          std::vector<float> logits(keys);
          index.score(q.data(), 0.2F, logits);
          for (const float x : logits) EXPECT_TRUE(std::isfinite(x)) << keys << " " << queries << " " << size;
        }
      }
    }
  }
}

// 2 r bytes per key and query head, as offloading.md 6 counts them, and the map of r x d.
TEST(ProjectedIndex, BytesOfSection6) {
  const IndexOptions lrqk = {.kind = IndexKind::kFactors, .factors = 32};
  EXPECT_EQ(ProjectedIndex::bytes_of(lrqk, 128, 1000).live - ProjectedIndex::bytes_of(lrqk, 128, 0).live, 1000U * 2 * 32);
  EXPECT_EQ(ProjectedIndex::bytes_of(lrqk, 128, 0).live, 4U * 32 * 128);
  // r = 32 and 32 query heads: 2,048 bytes per token, half of the full cache at C = 1,024.
  EXPECT_EQ(32U * (ProjectedIndex::bytes_of(lrqk, 128, 1).live - ProjectedIndex::bytes_of(lrqk, 128, 0).live), 2048U);
  const IndexOptions infinigen = {.kind = IndexKind::kPartial, .partial = 0.2};
  EXPECT_EQ(ProjectedIndex::bytes_of(infinigen, 64, 1000).live, 2U * 26 * 1000 + 4 * 26 * 64);
}

TEST(ProjectedIndex, MoreFactorsThanChannelsAreRefused) {
  const Status status = ProjectedIndex::check({.kind = IndexKind::kFactors, .factors = 65}, 64);
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_NE(status.message().find("factors=64"), std::string::npos);
  EXPECT_TRUE(ProjectedIndex::check({.kind = IndexKind::kFactors, .factors = 64}, 64).ok());
}

TEST(ProjectedIndex, NoMemoryIsSaid) {
  const std::shared_ptr<Arena> arena = Arena::create(1000);
  const std::vector<float> keys = normals(50 * kDim, 2);
  const MatView<const float> rows(keys.data(), 50, kDim);
  EXPECT_EQ(ProjectedIndex::build(*arena, {.kind = IndexKind::kPartial}, rows, rows).status().code(), Code::kExhausted);
}

}  // namespace
}  // namespace kvartet
