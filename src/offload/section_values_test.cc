// Values that offloading.md states for landmarks and presets: 2.3.1, 2.3.5, 5.4, 5.5 and 8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/normals_fixture.h"
#include "offload/landmark_index.h"
#include "offload/presets.h"
#include "offload/row_codec.h"
#include "offload/select_top.h"

namespace kvartet {
namespace {

constexpr int kDim = 128;
constexpr std::size_t kCols = 128;

std::vector<float> scores_of(const LandmarkIndex& index, const std::vector<float>& q) {
  std::vector<float> scores(static_cast<std::size_t>(index.landmarks()));
  std::vector<float> scratch;
  index.score({q.data(), 1, kCols}, 1.0F, {scores.data(), 1, scores.size()}, &scratch);
  return scores;
}

const SelectOptions& preset(std::string_view name) {
  const std::span<const SelectPreset> presets = select_presets();
  return std::find_if(presets.begin(), presets.end(), [&](const SelectPreset& p) { return p.name == name; })->options;
}

// Bytes of a token's codes and scales at C = 1,024: eight heads of 128, or one group of 1,024.
TEST(SectionValues, Section231Bits) {
  const auto bytes = [](RowFormat format, int group) {
    return RowCodec::create(format, group)->row_bytes() * static_cast<std::size_t>(1024 / group);
  };
  EXPECT_EQ(bytes(RowFormat::kHiggs2, 128), 256U + 16);             // 2.125 bits
  EXPECT_EQ(bytes(RowFormat::kHiggs2, 1024), 256U + 2);             // 2.016
  EXPECT_EQ(bytes(RowFormat::kHiggs4, 128), 512U + 16);             // 4.125
  EXPECT_EQ(bytes(RowFormat::kHiggs1, 128), 128U + 16);             // 1.125
  EXPECT_EQ(bytes(RowFormat::kHiggs4, 1024), 512U + 2);             // 4.016
  EXPECT_EQ(bytes(RowFormat::kNvfp4, 128), 1024U / 2 + 1024 / 16);  // 4.5
}

// Noise of a logit, q.k / sqrt(d), by a 2-bit landmark after unbiasing by 1 / (1 - D): 0.325 |q| |k| / d.
TEST(SectionValues, Section235PredictedScoreNoise) {
  constexpr double kD = 0.0955;
  const std::vector<float> keys = normals(4000 * kCols, 1);
  const std::shared_ptr<Arena> arena = Arena::create();
  const LandmarkIndex index = LandmarkIndex::build(*arena, {.format = RowFormat::kHiggs2}, {keys.data(), 4000, kCols}).value();
  const std::vector<float> q = normals(kCols, 2);
  const std::vector<float> scores = scores_of(index, q);
  const auto norm = [](const float* x) {
    double sum = 0;
    for (std::size_t c = 0; c < kCols; ++c) sum += static_cast<double>(x[c]) * x[c];
    return std::sqrt(sum);
  };
  double bias = 0;
  double square = 0;
  for (std::size_t t = 0; t < 4000; ++t) {
    double exact = 0;
    for (std::size_t c = 0; c < kCols; ++c) exact += static_cast<double>(q[c]) * keys[t * kCols + c];
    const double unit = norm(q.data()) * norm(keys.data() + t * kCols) / kDim;
    const double noise = (scores[t] / (1 - kD) - exact) / std::sqrt(1.0 * kDim) / unit;
    bias += noise / 4000;
    square += noise * noise / 4000;
  }
  EXPECT_NEAR(std::sqrt(square), 0.325, 0.02);
  EXPECT_NEAR(bias, 0, 0.03);
}

// 210 bytes a token and layer for the residual of 1.5 bits at C = 1,024, against 272 of plain 2-bit landmarks.
TEST(SectionValues, Section54Bytes) {
  constexpr int kLandmarks = 8 * 1000;
  EXPECT_EQ(8 * LandmarkIndex::bytes_of({.kind = IndexKind::kResidual}, kDim, kLandmarks).live, 210U * kLandmarks);
  EXPECT_EQ(8 * LandmarkIndex::bytes_of({.format = RowFormat::kHiggs2}, kDim, kLandmarks).live, 272U * kLandmarks);
}

// The second table of 5.5: recall of landmarks of one token by format and budget.
TEST(SectionValues, Section55RecallByBudget) {
  struct Row {
    RowFormat format;
    double recall[4];
  };
  const Row rows[] = {{RowFormat::kFp8, {.974, .976, .979, .983}},
                      {RowFormat::kHiggs4, {.913, .922, .932, .943}},
                      {RowFormat::kNvfp4, {.905, .915, .925, .937}},
                      {RowFormat::kHiggs2, {.692, .723, .757, .795}},
                      {RowFormat::kHiggs1, {.440, .487, .544, .613}}};
  constexpr std::size_t kKeys = 16384;
  constexpr int kQueries = 12;
  const std::vector<float> keys = normals(kKeys * kCols, 3);
  const MatView<const float> view(keys.data(), kKeys, kCols);
  const std::shared_ptr<Arena> arena = Arena::create();
  const LandmarkIndex exact = LandmarkIndex::build(*arena, {.format = RowFormat::kF32}, view).value();
  std::vector<std::vector<float>> queries;
  std::vector<std::vector<float>> truth;
  for (std::uint64_t i = 0; i < kQueries; ++i) {
    queries.push_back(normals(kCols, 50 + i));
    truth.push_back(scores_of(exact, queries.back()));
  }
  TopSelector top;
  for (const Row& row : rows) {
    const LandmarkIndex index = LandmarkIndex::build(*arena, {.format = row.format}, view).value();
    std::vector<std::vector<float>> scores;
    for (const std::vector<float>& q : queries) scores.push_back(scores_of(index, q));
    for (std::size_t b = 0; b < 4; ++b) {
      const int k = static_cast<int>(kKeys) >> (6 - b);
      double found = 0;
      for (std::size_t i = 0; i < queries.size(); ++i) {
        std::vector<std::int32_t> best, chosen, common;
        top.select(truth[i], k, &best);
        top.select(scores[i], k, &chosen);
        std::set_intersection(best.begin(), best.end(), chosen.begin(), chosen.end(), std::back_inserter(common));
        found += static_cast<double>(common.size()) / k / kQueries;
      }
      RecordProperty(std::string(row_format_name(row.format)) + "_" + std::to_string(k), std::to_string(found));
      EXPECT_NEAR(found, row.recall[b], row.recall[b] > 0.8 ? 0.02 : 0.03) << row_format_name(row.format) << " " << k;
    }
  }
}

TEST(SectionValues, Section8Presets) {
  const SelectOptions& shadow = preset("shadowkv");
  EXPECT_EQ(shadow.index.chunk, 8);
  EXPECT_EQ(shadow.rank, 160);
  EXPECT_TRUE(shadow.low_rank_keys);
  EXPECT_EQ(shadow.index.format, RowFormat::kBf16);
  EXPECT_EQ(shadow.sinks, (Amount{384, false}));
  EXPECT_EQ(shadow.local, (Amount{32, false}));
  EXPECT_EQ(shadow.budget, (Amount{1.0 / 64, true}));  // 2,048 at 128K
  EXPECT_EQ(shadow.aggregate, Aggregate::kMaxSoftmax);
  EXPECT_EQ(shadow.rope, KeyRope::kPre);
  const SelectOptions& yakv = preset("yakv");
  EXPECT_EQ(yakv.index.chunk, 1);
  EXPECT_EQ(yakv.index.format, RowFormat::kHiggs2);
  EXPECT_EQ(yakv.budget, (Amount{2 * 0.015625, true}));
  EXPECT_EQ(yakv.local, (Amount{64, false}));
  EXPECT_EQ(yakv.sinks, (Amount{0, false}));
  EXPECT_EQ(yakv.keys, RowFormat::kHiggs4);
  EXPECT_EQ(yakv.values, RowFormat::kHiggs4);
  EXPECT_EQ(yakv.aggregate, Aggregate::kMaxSoftmax);
  EXPECT_EQ(yakv.rope, KeyRope::kPre);
  EXPECT_EQ(yakv.least_prompt, 0);
  const SelectOptions& engine = preset("yakv-engine");
  EXPECT_EQ(engine.budget, (Amount{0.015625, true}));
  EXPECT_EQ(engine.local, (Amount{0.00625, true}));
  EXPECT_EQ(engine.sinks, (Amount{0.00625, true}));
  EXPECT_EQ(engine.keys, RowFormat::kFp8);
  EXPECT_EQ(engine.values, RowFormat::kFp8);
  EXPECT_EQ(engine.aggregate, Aggregate::kMeanQuery);
  EXPECT_EQ(engine.rope, KeyRope::kPost);
  EXPECT_EQ(engine.least_prompt, 512);
  EXPECT_EQ(engine.index.format, RowFormat::kHiggs2);
  for (const SelectPreset& p : select_presets()) {
    const bool first_dense = p.name == "quest" || p.name == "infinigen";  // 1.3: all others select in every layer
    EXPECT_EQ(p.options.dense_layers, first_dense ? 2 : 0) << p.name;
  }
}

}  // namespace
}  // namespace kvartet
