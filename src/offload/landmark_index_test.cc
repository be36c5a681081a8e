// Landmarks: T-LUT, T-RESID, T-ORACLE1, T-GAUSS-RECALL, T-MONO, and the tables 5.4 and 5.5 of offloading.md.
#include "offload/landmark_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/rng.h"
#include "offload/select_top.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

constexpr int kDim = 128;
constexpr std::size_t kCols = 128;

// Keys whose neighbours inside a chunk of `chunk` have pairwise correlation rho.
std::vector<float> keys_with_correlation(int count, int chunk, double rho, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> keys(static_cast<std::size_t>(count) * kCols);
  std::vector<double> shared(kCols);
  for (int t = 0; t < count; ++t) {
    if (t % chunk == 0)
      for (double& x : shared) x = rng.normal();
    for (std::size_t c = 0; c < kCols; ++c) {
      keys[static_cast<std::size_t>(t) * kCols + c] =
          static_cast<float>(std::sqrt(rho) * shared[c] + std::sqrt(1 - rho) * rng.normal());
    }
  }
  return keys;
}

LandmarkIndex index_of(const std::vector<float>& keys, const IndexOptions& options) {
  const std::shared_ptr<Arena> arena = Arena::create();
  Result<LandmarkIndex> index = LandmarkIndex::build(*arena, options, {keys.data(), keys.size() / kCols, kCols});
  EXPECT_TRUE(index.ok()) << index.status().message();
  return std::move(index).value();
}

std::vector<float> scores_of(const LandmarkIndex& index, const std::vector<float>& q) {
  std::vector<float> scores(static_cast<std::size_t>(index.landmarks()));
  std::vector<float> scratch;
  index.score({q.data(), 1, kCols}, 1.0F, {scores.data(), 1, scores.size()}, &scratch);
  return scores;
}

std::vector<float> query(std::uint64_t seed) {
  Rng rng(seed, 9);
  std::vector<float> q(kCols);
  for (float& x : q) x = static_cast<float>(rng.normal());
  return q;
}

// |S and S*| / |S*| at a budget of 1/32, mean over queries.
double recall(const std::vector<float>& keys, const IndexOptions& options, int queries) {
  const int count = static_cast<int>(keys.size() / kCols);
  const int k = count / 32;
  const LandmarkIndex exact = index_of(keys, {.format = RowFormat::kF32});
  const LandmarkIndex index = index_of(keys, options);
  TopSelector top;
  std::vector<std::int32_t> best;
  std::vector<std::int32_t> chunks;
  double sum = 0;
  for (int i = 0; i < queries; ++i) {
    const std::vector<float> q = query(static_cast<std::uint64_t>(i) + 1000);
    top.select(scores_of(exact, q), k, &best);
    top.select(scores_of(index, q), k / options.chunk, &chunks);
    int hits = 0;
    for (const std::int32_t token : best) {
      hits += std::binary_search(chunks.begin(), chunks.end(), token / options.chunk) ? 1 : 0;
    }
    sum += static_cast<double>(hits) / static_cast<double>(best.size());
  }
  return sum / queries;
}

TEST(Landmarks, TGaussRecall) {
  const auto expect_recall = [](const std::vector<float>& keys, const IndexOptions& options, double expected, double tolerance,
                                const std::string& name) {
    const double found = recall(keys, options, 20);
    testing::Test::RecordProperty(name, std::to_string(found));  // docs/methods/select.md has these figures
    EXPECT_NEAR(found, expected, tolerance) << name;
  };
  const std::vector<float> iid = keys_with_correlation(32768, 8, 0, 1);
  expect_recall(iid, {.format = RowFormat::kHiggs2}, 0.72, 0.03, "2-bit");
  expect_recall(iid, {.format = RowFormat::kHiggs4}, 0.92, 0.02, "4-bit");
  expect_recall(iid, {.format = RowFormat::kHiggs1}, 0.49, 0.03, "1-bit");
  expect_recall(iid, {.format = RowFormat::kBf16, .chunk = 8}, 0.13, 0.03, "chunk_8");
  const std::vector<float> alike = keys_with_correlation(32768, 8, 0.9, 2);
  expect_recall(alike, {.format = RowFormat::kBf16, .chunk = 8}, 0.73, 0.03, "alike_chunk_8");
  expect_recall(alike, {.kind = IndexKind::kResidual}, 0.84, 0.03, "alike_residual");
  expect_recall(alike, {.format = RowFormat::kHiggs2}, 0.72, 0.03, "alike_2-bit");
}

// The rows of 5.5, at three correlations; direct 1.5 bits need a grid of 4,096 points.
TEST(Landmarks, Section55Table) {
  struct Row {
    IndexOptions options;
    double recall[3];  // rho 0, 0.5, 0.8
  };
  const Row rows[] = {
      {{.format = RowFormat::kBf16, .chunk = 8}, {.127, .400, .622}},
      {{.format = RowFormat::kHiggs2}, {.72, .72, .72}},
      {{.format = RowFormat::kHiggs1}, {.487, .489, .485}},
      {{.format = RowFormat::kFp8, .chunk = 4}, {.202, .446, .647}},
      {{.format = RowFormat::kHiggs4, .chunk = 2}, {.354, .543, .706}},
      {{.kind = IndexKind::kResidual, .meta = 8}, {.522, .659, .781}},
      {{.kind = IndexKind::kResidual, .meta = 4}, {.555, .685, .799}},
      {{.format = RowFormat::kHiggs2, .chunk = 2}, {.325, .484, .613}},
      {{.format = RowFormat::kHiggs4, .chunk = 8}, {.131, .393, .619}},
      {{.format = RowFormat::kHiggs2x16}, {.70, .70, .70}},
      {{.format = RowFormat::kNvfp4}, {.915, .915, .915}},
      {{.format = RowFormat::kFp8}, {.976, .976, .976}},
  };
  const double rhos[] = {0, 0.5, 0.8};
  for (int i = 0; i < 3; ++i) {
    for (const Row& row : rows) {
      // The correlation is within whatever the landmark groups.
      const int together = row.options.kind == IndexKind::kResidual ? row.options.meta : std::max(row.options.chunk, 1);
      const std::vector<float> keys =
          keys_with_correlation(8192, std::max(together, 2), rhos[i], 10 + static_cast<std::uint64_t>(i));
      const double found = recall(keys, row.options, 16);
      const bool residual = row.options.kind == IndexKind::kResidual;
      RecordProperty(std::string(residual ? "residual" : row_format_name(row.options.format)) + "_c" +
                         std::to_string(row.options.chunk) + "_m" + std::to_string(row.options.meta) + "_rho" +
                         std::to_string(static_cast<int>(10 * rhos[i])),
                     std::to_string(found));
      EXPECT_NEAR(found, row.recall[i], 0.045) << row_format_name(row.options.format) << " chunk " << row.options.chunk
                                               << " meta " << row.options.meta << " rho " << rhos[i];
    }
  }
}

TEST(Landmarks, TMono) {
  const std::vector<float> keys = keys_with_correlation(8192, 8, 0.3, 5);
  double last = 0;
  for (const RowFormat format : {RowFormat::kHiggs1, RowFormat::kHiggs2, RowFormat::kHiggs4, RowFormat::kFp8, RowFormat::kF32}) {
    const double now = recall(keys, {.format = format}, 20);
    EXPECT_GE(now, last) << row_format_name(format);
    last = now;
  }
  last = 0;
  for (const int chunk : {8, 4, 2, 1}) {
    const double now = recall(keys, {.format = RowFormat::kBf16, .chunk = chunk}, 20);
    EXPECT_GE(now, last) << chunk;
    last = now;
  }
}

// Relative squared error of decoded landmarks.
double landmark_error(const std::vector<float>& keys, const IndexOptions& options) {
  const LandmarkIndex index = index_of(keys, options);
  std::vector<float> decoded(2 * kCols);
  double error = 0;
  double norm = 0;
  for (std::size_t t = 0; t < keys.size() / kCols; ++t) {
    index.decode(static_cast<int>(t) / options.chunk, decoded.data());
    for (std::size_t c = 0; c < kCols; ++c) {
      const double x = keys[t * kCols + c];
      error += (x - decoded[c]) * (x - decoded[c]);
      norm += x * x;
    }
  }
  return error / norm;
}

// Table 5.4, m = 8, (2,256) + (8,256), and the plain landmarks beside it.
TEST(Landmarks, TResidSection54) {
  struct Row {
    double rho, residual, plain, mean;
  };
  constexpr double kD1 = 0.3200;
  constexpr double kD4 = 0.00764;
  for (const Row& row : {Row{0.0, 0.2802, 0.0956, 0.875}, Row{0.5, 0.1414, 0.0954, 0.438}, Row{0.8, 0.0580, 0.0956, 0.175},
                         Row{0.9, 0.0303, 0.0953, 0.088}}) {
    const std::vector<float> keys = keys_with_correlation(8192, 8, row.rho, 20);
    const double residual = landmark_error(keys, {.kind = IndexKind::kResidual});
    RecordProperty("residual_rho" + std::to_string(static_cast<int>(10 * row.rho)), std::to_string(residual));
    EXPECT_NEAR(residual, row.residual, 0.05 * row.residual) << row.rho;
    const double formula = kD1 * ((1 - row.rho) * (1 - 1.0 / 8) + kD4 * (row.rho + (1 - row.rho) / 8));
    EXPECT_NEAR(residual, formula, 0.03 * formula) << row.rho;
    EXPECT_NEAR(landmark_error(keys, {.format = RowFormat::kHiggs2}), row.plain, 0.05 * row.plain) << row.rho;
    EXPECT_NEAR(landmark_error(keys, {.format = RowFormat::kF32, .chunk = 8}), row.mean, 0.05 * row.mean) << row.rho;
  }
  const std::vector<float> keys = keys_with_correlation(4096, 1, 0, 21);
  EXPECT_NEAR(landmark_error(keys, {.kind = IndexKind::kResidual, .meta = 1}), kD1 * kD4, 0.05 * kD1 * kD4);
}

TEST(Landmarks, TResidBitsAndOddCounts) {
  // 1.5 bits of codes per coordinate, and bf16 scales for 1/m + 1 groups.
  const std::size_t codes = 8192 * kCols * 3 / 2 / 8;
  const std::size_t scales = 2 * (8192 + 1024);
  EXPECT_EQ(LandmarkIndex::bytes_of({.kind = IndexKind::kResidual}, kDim, 8192).live, codes + scales);
  for (const int count : {1, 7, 9, 17}) {
    const std::vector<float> keys = keys_with_correlation(count, 1, 0, 22);
    EXPECT_LT(landmark_error(keys, {.kind = IndexKind::kResidual}), 0.4) << count;
    EXPECT_EQ(index_of(keys, {.kind = IndexKind::kResidual}).bytes(),
              LandmarkIndex::bytes_of({.kind = IndexKind::kResidual}, kDim, count));
  }
}

TEST(Landmarks, ScoresEqualDecodedProducts) {
  const std::vector<float> keys = keys_with_correlation(40, 4, 0.5, 30);
  const std::vector<float> queries = keys_with_correlation(7, 1, 0, 31);
  for (const IndexOptions& options : {IndexOptions{.format = RowFormat::kF32},
                                      {.format = RowFormat::kF16, .chunk = 2},
                                      {.format = RowFormat::kBf16, .chunk = 4},
                                      {.format = RowFormat::kFp8},
                                      {.format = RowFormat::kNvfp4},
                                      {.format = RowFormat::kHiggs4},
                                      {.format = RowFormat::kHiggs2},
                                      {.format = RowFormat::kHiggs1},
                                      {.kind = IndexKind::kResidual, .meta = 3},
                                      {.kind = IndexKind::kBounds, .format = RowFormat::kF32, .chunk = 4},
                                      {.kind = IndexKind::kDigest, .format = RowFormat::kBf16, .chunk = 8}}) {
    const LandmarkIndex index = index_of(keys, options);
    const auto count = static_cast<std::size_t>(index.landmarks());
    std::vector<float> logits(7 * count);
    std::vector<float> scratch;
    index.score({queries.data(), 7, kCols}, 0.5F, {logits.data(), 7, count}, &scratch);
    std::vector<float> landmark(2 * kCols);
    for (std::size_t j = 0; j < count; ++j) {
      index.decode(static_cast<int>(j), landmark.data());
      const bool box = options.kind == IndexKind::kBounds || options.kind == IndexKind::kDigest;
      for (std::size_t h = 0; h < 7; ++h) {
        double sum = 0;
        double size = 0;
        for (std::size_t c = 0; c < kCols; ++c) {
          const double q = queries[h * kCols + c];
          const double x = box ? std::max(q * landmark[c], q * landmark[kCols + c]) : q * landmark[c];
          sum += x;
          size += std::abs(x);
        }
        // Tables of whole numbers round; by how much at most, and that nothing else is lost, is TableScan's to test.
        const bool tables = options.format == RowFormat::kHiggs4 || options.format == RowFormat::kHiggs2 ||
                            options.format == RowFormat::kHiggs1 || options.kind == IndexKind::kResidual;
        const bool bytes = tables && options.format != RowFormat::kHiggs4;  // entries of a byte, where the grid loses a third
        const double tolerance = bytes ? 2.5e-3 : tables ? 1e-3 : 1e-5;
        EXPECT_NEAR(logits[h * count + j], 0.5 * sum, (box ? 1e-5 : tolerance) * size);
      }
    }
  }
}

// Several threads may score one index: parts have the bits of the whole.
TEST(Landmarks, PartsHaveTheBitsOfTheWhole) {
  constexpr std::size_t kQueries = 3;
  const std::vector<float> keys = keys_with_correlation(300, 1, 0, 36);
  const std::vector<float> q = keys_with_correlation(static_cast<int>(kQueries), 1, 0, 37);
  const MatView<const float> queries(q.data(), kQueries, kCols);
  for (const IndexOptions& options : {IndexOptions{.format = RowFormat::kHiggs2}, IndexOptions{.format = RowFormat::kHiggs4},
                                      IndexOptions{.format = RowFormat::kHiggs2x16}, IndexOptions{.format = RowFormat::kF16},
                                      IndexOptions{.kind = IndexKind::kResidual}, IndexOptions{.kind = IndexKind::kBounds}}) {
    const LandmarkIndex index = index_of(keys, options);
    const auto count = static_cast<std::size_t>(index.landmarks());
    std::vector<float> whole(kQueries * count);
    std::vector<float> parts(kQueries * count);
    std::vector<float> scratch;
    index.score(queries, 0.5F, {whole.data(), kQueries, count}, &scratch);
    const std::size_t borders[] = {0, LandmarkIndex::kPart, 3 * LandmarkIndex::kPart, count};
    for (std::size_t i = 0; i < 3; ++i) {
      index.score(queries, 0.5F, {parts.data() + borders[i], kQueries, borders[i + 1] - borders[i], count}, &scratch, borders[i]);
    }
    EXPECT_EQ(parts, whole) << static_cast<int>(options.kind) << " " << static_cast<int>(options.format);
    if (!index.finds_largest(kQueries)) continue;
    std::vector<float> largest(count);
    std::vector<float> largest_parts(count);
    index.score_largest(queries, 0.5F, largest, &scratch);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::span<float> part = std::span(largest_parts).subspan(borders[i], borders[i + 1] - borders[i]);
      index.score_largest(queries, 0.5F, part, &scratch, borders[i]);
    }
    EXPECT_EQ(largest_parts, largest);
  }
}

// The shuffled tables are 7-bit: 32 landmarks at once, odd counts, every instruction set.
TEST(Landmarks, ScanScoresAreCloseToDecodedProducts) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const int count : {1, 31, 32, 33, 100}) {
      const std::vector<float> keys = keys_with_correlation(count, 1, 0, 33);
      const LandmarkIndex index = index_of(keys, {.format = RowFormat::kHiggs2x16});
      EXPECT_EQ(index.bytes().live, static_cast<std::size_t>(count) * (kDim / 4 + 2));
      const std::vector<float> q = query(7);
      const std::vector<float> scores = scores_of(index, q);
      std::vector<float> landmark(2 * kCols);
      for (int j = 0; j < count; ++j) {
        index.decode(j, landmark.data());
        double exact = 0;
        double key_square = 0;
        double query_square = 0;
        for (std::size_t c = 0; c < kCols; ++c) {
          exact += static_cast<double>(q[c]) * landmark[c];
          key_square += static_cast<double>(landmark[c]) * landmark[c];
          query_square += static_cast<double>(q[c]) * q[c];
        }
        // In units of a random logit's deviation.
        EXPECT_NEAR(scores[static_cast<std::size_t>(j)], exact, 0.08 * std::sqrt(key_square * query_square / kDim))
            << target.name;
      }
    }
  }
}

// Quest: the box score is never below any logit of its page; a page of one token is the token.
TEST(Landmarks, BoundsAreUpperBounds) {
  const std::vector<float> keys = keys_with_correlation(64, 1, 0, 40);
  const LandmarkIndex boxes = index_of(keys, {.kind = IndexKind::kBounds, .format = RowFormat::kF32, .chunk = 16});
  const LandmarkIndex exact = index_of(keys, {.format = RowFormat::kF32});
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> q = query(seed);
    const std::vector<float> bounds = scores_of(boxes, q);
    const std::vector<float> logits = scores_of(exact, q);
    for (std::size_t t = 0; t < logits.size(); ++t) EXPECT_GE(bounds[t / 16] + 1e-4F, logits[t]);
    const std::vector<float> single = scores_of(index_of(keys, {.kind = IndexKind::kBounds, .format = RowFormat::kF32}), q);
    for (std::size_t t = 0; t < logits.size(); ++t) EXPECT_NEAR(single[t], logits[t], 1e-4);
  }
}

// An index that grew is the one that had been built at once.
TEST(LandmarkIndex, GrowsByWholeGroups) {
  using enum IndexKind;
  for (const IndexOptions& options :
       std::vector<IndexOptions>{{.kind = kMean, .format = RowFormat::kHiggs2},
                                 {.kind = kMean, .format = RowFormat::kHiggs4, .chunk = 2},
                                 {.kind = kMean, .format = RowFormat::kHiggs2x16},
                                 {.kind = kMean, .format = RowFormat::kBf16, .chunk = 8},
                                 {.kind = kMean, .format = RowFormat::kF32},
                                 {.kind = kResidual, .format = RowFormat::kHiggs1},
                                 {.kind = kResidual, .format = RowFormat::kHiggs1, .chunk = 2, .meta = 3},
                                 {.kind = kBounds, .format = RowFormat::kBf16, .chunk = 16},
                                 {.kind = kDigest, .format = RowFormat::kF16, .chunk = 4}}) {
    const int block = landmark_group(options) * (options.kind == kBounds ? 4 : 5) * options.chunk;
    const std::vector<float> keys = keys_with_correlation(3 * block, options.chunk, 0.5, 31);
    const LandmarkIndex whole = index_of(keys, options);
    const auto arena = Arena::create();
    const auto part = [&](int begin, int end) {
      return MatView<const float>(keys.data() + static_cast<std::size_t>(begin) * kCols, static_cast<std::size_t>(end - begin),
                                  kCols);
    };
    // From nothing, in three steps.
    const LandmarkIndex empty = whole.emptied();
    EXPECT_EQ(empty.landmarks(), 0);
    const LandmarkIndex one = empty.extended(*arena, part(0, block)).value();
    const LandmarkIndex two = one.extended(*arena, part(block, 2 * block)).value();
    const LandmarkIndex three = two.extended(*arena, part(2 * block, 3 * block)).value();
    ASSERT_EQ(three.landmarks(), whole.landmarks());
    EXPECT_EQ(three.bytes(), whole.bytes());
    EXPECT_EQ(arena->allocated_bytes(), one.bytes().allocated + two.bytes().allocated + three.bytes().allocated);
    const std::vector<float> q = query(4);
    EXPECT_EQ(scores_of(three, q), scores_of(whole, q));
    std::vector<float> a(2 * kCols, 0.0F);
    std::vector<float> b(2 * kCols, 0.0F);
    for (int i = 0; i < whole.landmarks(); ++i) {
      whole.decode(i, a.data());
      three.decode(i, b.data());
      ASSERT_EQ(a, b) << i;
    }
    arena->fail_nth_allocation(1);
    EXPECT_EQ(two.extended(*arena, part(0, block)).status().code(), Code::kExhausted);
  }
}

// NVFP4 has one scale for all landmarks: those that come later are written with the first ones'.
TEST(LandmarkIndex, LaterLandmarksHaveTheScaleOfTheFirst) {
  const IndexOptions options{.kind = IndexKind::kMean, .format = RowFormat::kNvfp4};
  const std::vector<float> keys = keys_with_correlation(64, 1, 0, 5);
  const LandmarkIndex first = index_of(keys, options);
  const auto arena = Arena::create();
  const LandmarkIndex longer = first.extended(*arena, {keys.data(), 64, kCols}).value();
  std::vector<float> a(kCols);
  std::vector<float> b(kCols);
  for (int i = 0; i < 64; ++i) {
    first.decode(i, a.data());
    longer.decode(64 + i, b.data());
    ASSERT_EQ(a, b);
  }
}

}  // namespace
}  // namespace kvartet
