// Attention's inner loops on every instruction set this CPU has, against plain double arithmetic.
#include "attention/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_fixture.h"
#include "attention/packed_queries.h"
#include "core/bfloat16.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

class AttentionKernelsTest : public testing::TestWithParam<SimdTarget> {
 protected:
  ScopedSimdTarget scope_{GetParam()};
  AttentionKernels kernels_ = attention_kernels(Precision::kNative);
};

INSTANTIATE_TEST_SUITE_P(All, AttentionKernelsTest, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return info.param.name; });

TEST_P(AttentionKernelsTest, ExponentialIsAccurateOverItsWholeRange) {
  AlignedScratch scratch;
  float* const row = scratch.ensure(128);
  for (const LogitBase base : {LogitBase::kE, LogitBase::kTwo}) {
    const double octave = base == LogitBase::kE ? std::log(2.0) : 1.0;
    for (int sweep = 0; sweep < 400; ++sweep) {
      for (int i = 0; i < 128; ++i) row[i] = static_cast<float>(-octave * 124.9 * (sweep * 128 + i) / (400 * 128));
      const std::vector<float> x(row, row + 128);
      float max = 0.0F;
      float sum = 0.0F;
      float rescale = 0.0F;
      (base == LogitBase::kE ? kernels_.online_softmax_e : kernels_.online_softmax_two)(
          {.logits = row, .stride = 128, .rows = 1, .columns = {0, 128}, .max = &max, .sum = &sum, .rescale = &rescale});
      for (std::size_t i = 0; i < 128; ++i) {
        const double exact = base == LogitBase::kE ? std::exp(static_cast<double>(x[i])) : std::exp2(static_cast<double>(x[i]));
        // e^x goes through x * log2(e), whose rounding grows with |x|; where |x| is large the weight is nothing.
        const double tolerance = base == LogitBase::kE ? 2e-7 + 1.2e-7 * std::abs(x[i]) : 2e-7;
        ASSERT_NEAR(row[i], exact, tolerance * exact) << x[i];
      }
    }
  }
}

TEST_P(AttentionKernelsTest, OnlineSoftmaxOverBlocksEqualsOnePass) {
  constexpr std::size_t kStride = 128;
  constexpr int kRows = 5;
  AlignedScratch scratch;
  float* const logits = scratch.ensure(kRows * kStride);
  for (const int columns : {1, 16, 77, 128}) {
    const std::vector<float> all = random_rows(3 * kRows * kStride, 3.0, 9);
    std::vector<float> max(kRows, kNoLogit);
    std::vector<float> sum(kRows, 0.0F);
    std::vector<float> rescale(kRows);
    std::vector<double> weighted(kRows);  // sum of weight * column number, rescaled as attention does with values
    for (std::size_t block = 0; block < 3; ++block) {
      std::fill_n(logits, kRows * kStride, kNoLogit);
      for (std::size_t r = 0; r < kRows; ++r)
        std::copy_n(all.data() + (block * kRows + r) * kStride, columns, logits + r * kStride);
      kernels_.online_softmax_e({.logits = logits,
                                 .stride = kStride,
                                 .rows = kRows,
                                 .columns = {0, columns},
                                 .max = max.data(),
                                 .sum = sum.data(),
                                 .rescale = rescale.data()});
      for (std::size_t r = 0; r < kRows; ++r) {
        weighted[r] *= rescale[r];
        for (std::size_t c = 0; c < uz(columns); ++c) weighted[r] += logits[r * kStride + c] * static_cast<double>(c + block);
      }
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      double exact_max = -1e30;
      double exact_sum = 0;
      double exact_weighted = 0;
      const auto for_all = [&](const auto& visit) {
        for (std::size_t block = 0; block < 3; ++block) {
          for (std::size_t c = 0; c < uz(columns); ++c)
            visit(all[(block * kRows + r) * kStride + c], static_cast<double>(c + block));
        }
      };
      for_all([&](float x, double) { exact_max = std::max(exact_max, static_cast<double>(x)); });
      for_all([&](float x, double at) {
        exact_sum += std::exp(x - exact_max);
        exact_weighted += std::exp(x - exact_max) * at;
      });
      EXPECT_EQ(max[r], static_cast<float>(exact_max));
      EXPECT_NEAR(sum[r], exact_sum, 1e-6 * exact_sum);
      EXPECT_NEAR(weighted[r], exact_weighted, 1e-6 * exact_weighted + 1e-9);
    }
  }
}

TEST_P(AttentionKernelsTest, RowsThatSawNothingStayEmpty) {
  AlignedScratch scratch;
  float* const logits = scratch.ensure(128);
  std::fill_n(logits, 128, kNoLogit);
  float max = kNoLogit;
  float sum = 0.0F;
  float rescale = 5.0F;
  kernels_.online_softmax_two(
      {.logits = logits, .stride = 128, .rows = 1, .columns = {0, 128}, .max = &max, .sum = &sum, .rescale = &rescale});
  EXPECT_EQ(max, kNoLogit);
  EXPECT_EQ(sum, 0.0F);
  EXPECT_EQ(rescale, 1.0F);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(logits[i], 0.0F);
}

TEST_P(AttentionKernelsTest, SoftmaxRowOfAnyLengthAndAlignment) {
  for (const std::size_t count : {1U, 2U, 7U, 8U, 9U, 31U, 100U, 1000U}) {
    for (std::size_t shift = 0; shift < 3; ++shift) {
      std::vector<float> row = random_rows(count + 4, 5.0, count);
      const std::vector<float> x = row;
      kernels_.softmax_row(row.data() + shift, count, LogitBase::kE);
      double max = -1e30;
      double sum = 0;
      for (std::size_t i = 0; i < count; ++i) max = std::max(max, static_cast<double>(x[shift + i]));
      for (std::size_t i = 0; i < count; ++i) sum += std::exp(x[shift + i] - max);
      for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(row[shift + i], std::exp(x[shift + i] - max) / sum, 1e-6);
      for (std::size_t i = 0; i < shift; ++i) ASSERT_EQ(row[i], x[i]);
      for (std::size_t i = shift + count; i < x.size(); ++i) ASSERT_EQ(row[i], x[i]);
    }
  }
}

// Both matrix products of a tile, with a last block that is not full and groups that see only a part of it.
TEST_P(AttentionKernelsTest, TileProductsEqualTheirDefinition) {
  for (const int head_dim : {8, 16, 20, 64, 80, 96, 128}) {
    SCOPED_TRACE(head_dim);
    const std::size_t d = uz(head_dim);
    const std::size_t stride = kernels_.acc_stride(head_dim);
    constexpr std::size_t kTokens = 101;
    constexpr int kGroups = 3;
    constexpr std::size_t kRows = kGroups * kMicroRows;
    // In BF16 already, so that rounding them changes nothing.
    const std::vector<float> q = queries_rounded_to_bf16(random_rows(kRows * d, 1.0, 1), head_dim);
    const std::vector<float> k = rounded_to_bf16(random_rows(kTokens * d, 1.0, 2));
    const std::vector<float> v = rounded_to_bf16(random_rows(kTokens * d, 1.0, 3));
    const std::vector<float> weights = rounded_to_bf16(random_rows(kRows * kPrefillBlock, 1.0, 4));
    const ColumnRange columns[kGroups] = {{0, kTokens}, {17, 60}, {40, 40}};
    AlignedScratch packed_q;
    AlignedScratch keys;
    AlignedScratch values;
    AlignedScratch logits;
    AlignedScratch packed_weights;
    AlignedScratch acc;
    kernels_.pack_queries({q.data(), kRows, 1, d, d}, {.tokens = kRows, .group = 1},
                          packed_q.ensure_bytes(kGroups * kernels_.query_group_bytes(head_dim)));
    kernels_.pack_keys({k.data(), kTokens, d}, keys.ensure_bytes(kernels_.key_block_bytes(head_dim)));
    kernels_.pack_values({v.data(), kTokens, d}, values.ensure_bytes(kernels_.value_block_bytes(head_dim)));
    // A weight that no row of a group sees is 0, as the softmax leaves it.
    const auto weight = [&](std::size_t r, std::size_t t) {
      const ColumnRange seen = columns[r / kMicroRows];
      return t >= uz(seen.begin) && t < uz(seen.end) ? weights[r * kPrefillBlock + t] : 0.0F;
    };
    std::byte* const packed = packed_weights.ensure_bytes(kRows * kPrefillBlock * kernels_.element);
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t t = 0; t < kPrefillBlock; ++t) {
        const float w = weight(r, t);
        const std::uint16_t rounded = bf16_from_float(w);
        const void* const from = multiplies_bf16() ? static_cast<const void*>(&rounded) : &w;
        std::memcpy(packed + (r * kPrefillBlock + t) * kernels_.element, from, kernels_.element);
      }
    }
    std::fill_n(acc.ensure(kRows * stride), kRows * stride, 1.0F);
    const std::vector<float> rescale(kRows, 0.5F);
    const PrefillTile tile{.queries = packed_q.bytes(),
                           .groups = kGroups,
                           .head_dim = head_dim,
                           .keys = keys.bytes(),
                           .values = values.bytes(),
                           .columns = columns,
                           .logits = logits.ensure(kRows * kPrefillBlock),
                           .weights = packed,
                           .rescale = rescale.data(),
                           .acc = acc.data()};
    kernels_.score_tile(tile);
    kernels_.accumulate_tile(tile);
    RelativeError score_error;
    RelativeError value_error;
    for (std::size_t r = 0; r < kRows; ++r) {
      const ColumnRange seen = columns[r / kMicroRows];
      std::vector<double> sums(d, seen.begin < seen.end ? 0.5 : 1.0);
      for (std::size_t t = uz(seen.begin); t < uz(seen.end); ++t) {
        double dot = 0;
        for (std::size_t c = 0; c < d; ++c) dot += static_cast<double>(q[r * d + c]) * k[t * d + c];
        const std::vector<double> logit{dot * kLog2E / std::sqrt(static_cast<double>(head_dim))};
        const float got = logits.data()[r * kPrefillBlock + t];
        score_error.add(&got, logit);
        for (std::size_t c = 0; c < d; ++c) sums[c] += static_cast<double>(weight(r, t)) * v[t * d + c];
      }
      value_error.add(acc.data() + r * stride, sums);
    }
    EXPECT_LT(score_error.value(), 1e-6);
    EXPECT_LT(value_error.value(), 1e-6);
  }
}

// The softmax as prefill uses it: weights in packed elements, and the sum of just those, so that a row's weights add up to 1.
TEST_P(AttentionKernelsTest, WeightsOfATileAndTheirSum) {
  constexpr std::size_t kBlock = kPrefillBlock;
  constexpr std::size_t kRows = kMicroRows;
  AlignedScratch scratch;
  AlignedScratch packed;
  float* const logits = scratch.ensure(kRows * kBlock);
  std::byte* const weights =
      kernels_.weights_are_logits() ? scratch.bytes() : packed.ensure_bytes(kRows * kBlock * kernels_.element);
  const double rounding = multiplies_bf16() ? 0x1p-8 + 1e-4 : 2e-7;
  for (const ColumnRange columns : {ColumnRange{0, 1}, {0, 64}, {0, 100}, {70, 128}, {0, 128}}) {
    std::vector<float> x = random_rows(kRows * kBlock, 20.0, 3);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const int c = static_cast<int>(i % kBlock);
      if (c < columns.begin || c >= columns.end || i / kBlock == 4) x[i] = kNoLogit;  // row 4 sees nothing
    }
    std::ranges::copy(x, logits);
    float max[kRows] = {kNoLogit, 3.0F, 100.0F, kNoLogit, kNoLogit, -200.0F};
    float sum[kRows] = {0.0F, 2.0F, 4.0F, 0.0F, 0.0F, 1.0F};
    const std::vector<float> old_max(max, max + kRows);
    const std::vector<float> old_sum(sum, sum + kRows);
    float rescale[kRows];
    kernels_.weigh_tile({.logits = logits,
                         .stride = kBlock,
                         .rows = kMicroRows,
                         .columns = columns,
                         .max = max,
                         .sum = sum,
                         .rescale = rescale,
                         .weights = weights});
    for (std::size_t r = 0; r < kRows; ++r) {
      const float* const row = x.data() + r * kBlock;
      const float largest = std::max(old_max[r], *std::max_element(row, row + kBlock));
      EXPECT_EQ(max[r], largest);
      const double factor = old_max[r] == largest ? 1.0 : std::exp2(static_cast<double>(old_max[r] - largest));
      EXPECT_NEAR(rescale[r], factor, 2e-7 * factor + 0x1p-125);
      double total = old_sum[r] * factor;
      for (std::size_t c = uz(columns.begin); c < uz(columns.end); ++c) {
        float weight = 0.0F;
        std::uint16_t half = 0;
        if (multiplies_bf16()) {
          std::memcpy(&half, weights + (r * kBlock + c) * kernels_.element, kernels_.element);
          weight = float_from_bf16(half);
        } else {
          std::memcpy(&weight, weights + (r * kBlock + c) * kernels_.element, kernels_.element);
        }
        const double exact = row[c] == kNoLogit ? 0.0 : std::exp2(static_cast<double>(row[c] - largest));
        ASSERT_NEAR(weight, exact, rounding * exact + 0x1p-125) << r << " " << c;
        total += weight;
      }
      EXPECT_NEAR(sum[r], total, 1e-6 * total);
    }
  }
}

}  // namespace
}  // namespace kvartet
