// Table look-up with whole numbers of 16 bits, or of 8, against products in double (offloading.md 2.3.4): T-LUT within the
// rounding that table_scan_error() promises, and what that rounding does to a selection.
#include "quantize/table_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/bfloat16.h"
#include "core/normals_fixture.h"
#include "core/rng.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

// Random landmarks in blocks, and what they stand for.
struct Coded {
  Coded(const HiggsGrid& grid, std::size_t count, std::size_t subs) : subs(subs), count(count) {
    Rng rng(count);
    bytes.resize(1 + code_blocks_bytes(count, subs));
    const auto p = static_cast<std::size_t>(grid.p());
    std::vector<std::byte> row(subs + 2);
    for (std::size_t j = 0; j < count; ++j) {
      for (std::size_t s = 0; s < subs; ++s) {
        const auto code = static_cast<std::uint8_t>(rng.below(256));
        row[s] = std::byte{code};
        for (std::size_t k = 0; k < p; ++k) points.push_back(grid.point(code)[k]);
      }
      const std::uint16_t scale = bf16_from_float(static_cast<float>(0.5 + rng.uniform()));
      std::memcpy(row.data() + subs, &scale, sizeof(scale));
      scales.push_back(float_from_bf16(scale));
      put_code_row(bytes.data() + 1, subs, j, row.data());
      std::vector<std::byte> back(subs + 2);
      get_code_row(bytes.data() + 1, subs, j, back.data());
      EXPECT_EQ(back, row);
    }
  }
  CodeBlocks blocks() const { return {bytes.data() + 1, count, subs}; }  // at an odd address
  double product(const float* query, std::size_t j) const {
    const std::size_t dim = points.size() / count;
    double sum = 0;
    for (std::size_t i = 0; i < dim; ++i) sum += static_cast<double>(query[i]) * points[j * dim + i];
    return sum * scales[j];
  }

  std::size_t subs;
  std::size_t count;
  std::vector<std::byte> bytes;
  std::vector<float> points;  // [count, dim], unscaled
  std::vector<float> scales;
};

TEST(TableScan, TLutOnEveryTarget) {
  constexpr float kFactor = 0.125F;
  constexpr float kGuard = -5;
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const int p : {1, 2, 4, 8}) {
      for (const std::size_t dim : {8U, 16U, 64U, 96U, 256U}) {
        if (p == 1 && dim != 16) continue;
        const HiggsGrid& grid = p == 1 ? HiggsGrid(1, {normals(256, 9).data(), 256, 1}) : *HiggsGrid::find(p, 256).value();
        const std::size_t subs = dim / static_cast<std::size_t>(p);
        for (const std::size_t count : {1U, 255U, 261U, 1100U}) {
          const Coded coded(grid, count, subs);
          for (const std::size_t queries : {1U, 3U, 4U}) {
            const std::vector<float> q = normals(queries * dim, dim);
            std::vector<float> logits(queries * count + 1, kGuard);
            score_code_blocks(grid, coded.blocks(), {q.data(), queries, dim}, kFactor, {logits.data(), queries, count});
            for (std::size_t h = 0; h < queries; ++h) {
              for (std::size_t j = 0; j < count; ++j) {
                const float* const query = q.data() + h * dim;
                const double f32 = 1e-5 * std::sqrt(static_cast<double>(dim));
                const double allowed = kFactor * coded.scales[j] * (1.01 * table_scan_error(grid, query, subs) + f32);
                ASSERT_NEAR(logits[h * count + j], kFactor * coded.product(query, j), allowed)
                    << target.name << " p " << p << " dim " << dim << " query " << h << " row " << j << " of " << count;
              }
            }
            EXPECT_EQ(logits.back(), kGuard);
          }
        }
      }
    }
  }
}

// Queries so small that their squares are no numbers of f32: an underestimated range would let the sums of 16 bits wrap.
TEST(TableScan, TinyQueriesKeepTheirRange) {
  constexpr std::size_t kDim = 64;
  constexpr std::size_t kCount = 261;
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const int p : {2, 4}) {
      const HiggsGrid& grid = *HiggsGrid::find(p, 256).value();
      const std::size_t subs = kDim / static_cast<std::size_t>(p);
      const Coded coded(grid, kCount, subs);
      for (const float size : {1e-18F, 1e-22F, 3e-23F, 1e-30F, 1e-36F, 1e-41F}) {
        std::vector<float> q = normals(kDim, 5);
        for (float& x : q) x *= size;
        std::vector<float> logits(kCount);
        score_code_blocks(grid, coded.blocks(), {q.data(), 1, kDim}, 1, {logits.data(), 1, kCount});
        for (std::size_t j = 0; j < kCount; ++j) {
          const double f32 = 1e-5 * std::sqrt(static_cast<double>(kDim)) * size + 1e-33;  // below that all is one
          const double allowed = coded.scales[j] * (1.01 * table_scan_error(grid, q.data(), subs) + f32);
          ASSERT_NEAR(logits[j], coded.product(q.data(), j), allowed) << target.name << " p " << p << " size " << size;
        }
      }
    }
  }
}

// Byte permutations give the sums that machine words give: the same bits wherever products are fused.
TEST(TableScan, TheSameBitsOnEveryTargetThatFusesProducts) {
  constexpr std::size_t kQueries = 3;
  for (const std::size_t dim : {64U, 128U}) {
    for (const std::size_t count : {63U, 64U, 2000U}) {
      const HiggsGrid& grid = *HiggsGrid::find(4, 256).value();
      const Coded coded(grid, count, dim / 4);
      std::vector<float> q = normals(kQueries * dim, count);
      std::fill_n(q.begin() + 4, dim - 4, 0.0F);  // a query in one table: entries of all 16 bits
      std::vector<float> first;
      for (const SimdTarget& target : simd_targets()) {
        if (target.name.find("AVX") == std::string::npos) continue;
        const ScopedSimdTarget scope(target);
        std::vector<float> logits(kQueries * count);
        score_code_blocks(grid, coded.blocks(), {q.data(), kQueries, dim}, 1, {logits.data(), kQueries, count});
        if (first.empty()) first = logits;
        EXPECT_EQ(logits, first) << target.name << " " << dim << " " << count;
      }
    }
  }
}

// The best 224 of 7,168 landmarks of 2 bits: those of exact products, but for rows as near to the border as the rounding is wide.
TEST(TableScan, TheBestRowsAreTheExactOnesUpToRounding) {
  constexpr std::size_t kDim = 64;
  constexpr std::size_t kCount = 7168;
  constexpr std::size_t kBest = kCount / 32;
  const HiggsGrid& grid = *HiggsGrid::find(4, 256).value();
  const Coded coded(grid, kCount, kDim / 4);
  std::size_t exchanged = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<float> q = normals(kDim, seed);
    std::vector<float> logits(kCount);
    score_code_blocks(grid, coded.blocks(), {q.data(), 1, kDim}, 1, {logits.data(), 1, kCount});
    std::vector<double> exact(kCount);
    for (std::size_t j = 0; j < kCount; ++j) exact[j] = coded.product(q.data(), j);
    std::vector<std::size_t> order(kCount);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return exact[a] > exact[b]; });
    const double border = exact[order[kBest - 1]];
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    for (std::size_t i = 0; i < kBest; ++i) {
      if (exact[order[i]] >= border) continue;
      ++exchanged;
      EXPECT_GE(exact[order[i]], border - 2 * 1.5 * table_scan_error(grid, q.data(), kDim / 4));
    }
  }
  // With entries of 16 bits 2 of 4,480 are exchanged, with those of a byte 35: rows that the grid itself, which exchanges every
  // third, puts as near to each other.
  EXPECT_LE(exchanged, 45U);
  RecordProperty("exchanged_of_4480", static_cast<int>(exchanged));
}

}  // namespace
}  // namespace kvartet
