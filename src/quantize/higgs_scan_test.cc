// The scan over landmarks in the (2,16) grid: the largest logit of several queries, found without writing logits down.
#include "quantize/higgs_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/bfloat16.h"
#include "core/normals_fixture.h"
#include "core/rng.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

struct Landmarks {
  std::vector<std::byte> blocks;
  std::vector<std::uint8_t> codes;  // [count, dim / 2]
  std::vector<std::uint16_t> scales;
};

Landmarks random_landmarks(std::size_t count, std::size_t dim) {
  Landmarks made;
  made.blocks.resize((count + kScanLandmarks - 1) / kScanLandmarks * scan_block_bytes(dim));
  Rng rng(count);
  for (std::size_t j = 0; j < count; ++j) {
    for (std::size_t i = 0; i < dim / 2; ++i) made.codes.push_back(static_cast<std::uint8_t>(rng.below(16)));
    made.scales.push_back(bf16_from_float(static_cast<float>(1 + rng.uniform())));
    put_scan_landmark(made.blocks.data() + j / kScanLandmarks * scan_block_bytes(dim), dim, j % kScanLandmarks,
                      made.codes.data() + j * (dim / 2), made.scales[j]);
  }
  return made;
}

// One query after the other, table by table, in double.
double slow_logit(const HiggsGrid& grid, const Landmarks& landmarks, std::size_t j, const float* query, std::size_t dim) {
  double sum = 0;
  for (std::size_t pair = 0; pair < dim / 2; ++pair) {
    const float* const point = grid.point(landmarks.codes[j * (dim / 2) + pair]);
    sum += static_cast<double>(query[2 * pair]) * point[0] + static_cast<double>(query[2 * pair + 1]) * point[1];
  }
  return sum * float_from_bf16(landmarks.scales[j]);
}

TEST(HiggsScan, LogitsAreThoseOfTheGridWithinSevenBits) {
  const HiggsGrid& grid = *HiggsGrid::find(2, 16).value();
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const std::size_t dim : {8U, 64U, 128U, 512U}) {
      for (const std::size_t queries : {1U, 2U, 3U, 4U, 5U, 9U}) {
        const std::size_t count = 70;
        const Landmarks landmarks = random_landmarks(count, dim);
        std::vector<float> q = normals(queries * dim, 4);
        const float size = queries == 5 ? 1e-30F : queries == 9 ? 1e-41F : 1;  // also queries that are next to nothing
        for (float& x : q) x *= size;
        std::vector<float> logits(queries * count);
        score_scan_blocks(grid, landmarks.blocks.data(), count, {q.data(), queries, dim}, {logits.data(), queries, count});
        for (std::size_t h = 0; h < queries; ++h) {
          for (std::size_t j = 0; j < count; ++j) {
            // An entry is off by half a step, a step by at most 1/127 of about 12 deviations; errors add up as a random walk.
            const double allowed = size * 2 * 0.06 * 4 * std::sqrt(static_cast<double>(dim / 2)) + (size < 1 ? 1e-33 : 0);
            EXPECT_NEAR(logits[h * count + j], slow_logit(grid, landmarks, j, q.data() + h * dim, dim), allowed)
                << target.name << " dim " << dim << " query " << h;
          }
        }
      }
    }
  }
}

TEST(HiggsScan, TheLargestEqualsTheMaximumOfTheLogitsToTheBit) {
  const HiggsGrid& grid = *HiggsGrid::find(2, 16).value();
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const std::size_t queries : {1U, 2U, 3U, 4U}) {
      for (const std::size_t count : {1U, 31U, 32U, 33U, 63U, 64U, 65U, 200U}) {
        constexpr std::size_t kDim = 64;
        constexpr float kFactor = 0.125F;
        const Landmarks landmarks = random_landmarks(count, kDim);
        const std::vector<float> q = normals(queries * kDim, 5);
        std::vector<float> logits(queries * count);
        score_scan_blocks(grid, landmarks.blocks.data(), count, {q.data(), queries, kDim}, {logits.data(), queries, count});
        std::vector<float> best(count + 1, -7.0F);
        largest_scan_scores(grid, landmarks.blocks.data(), count, {q.data(), queries, kDim}, kFactor,
                            std::span<float>(best).first(count));
        for (std::size_t j = 0; j < count; ++j) {
          float largest = logits[j];
          for (std::size_t h = 1; h < queries; ++h) largest = std::max(largest, logits[h * count + j]);
          EXPECT_EQ(best[j], largest * kFactor) << target.name << " landmark " << j << " of " << count;
        }
        EXPECT_EQ(best[count], -7.0F);  // nothing beyond the end
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
