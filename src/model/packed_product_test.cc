#include "model/packed_product.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ggml.h>
#include <gtest/gtest.h>

#include "core/bfloat16.h"
#include "core/rng.h"
#include "model/ggml_runtime.h"

namespace kvartet {
namespace {

struct Case {
  std::size_t inputs, outputs, rows;
};
constexpr Case kCases[] = {{32, 1, 1}, {64, 17, 5}, {96, 64, 6}, {192, 65, 7}, {224, 100, 13}, {576, 130, 12}};

std::vector<float> normals(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(rng.normal());
  return values;
}

std::vector<std::uint32_t> packed(const std::vector<float>& weights, std::size_t inputs, std::size_t outputs) {
  std::vector<std::uint32_t> panels(panel_count(outputs) * kPanelOutputs * inputs / 2, 0xffffffffU);
  for (std::size_t first = 0; first < outputs; first += kPanelOutputs) {
    packed_kernels()->pack(weights.data() + first * inputs, inputs, std::min(kPanelOutputs, outputs - first),
                           panels.data() + first * inputs / 2);
  }
  return panels;
}

TEST(PackedProduct, PanelsHoldPairsOfRoundedWeights) {
  if (packed_kernels() == nullptr) GTEST_SKIP() << "this CPU has no dot products of BF16";
  for (const Case& size : kCases) {
    const std::vector<float> weights = normals(size.inputs * size.outputs, 1);
    const std::vector<std::uint32_t> panels = packed(weights, size.inputs, size.outputs);
    for (std::size_t o = 0; o < panel_count(size.outputs) * kPanelOutputs; ++o) {
      for (std::size_t i = 0; i < size.inputs; i += 2) {
        const auto rounded = [&](std::size_t input) {
          return o < size.outputs ? std::uint32_t{bf16_from_float(weights[o * size.inputs + input])} : 0U;
        };
        const std::size_t panel = o / kPanelOutputs * kPanelOutputs * size.inputs / 2;
        ASSERT_EQ(panels[panel + i / 2 * kPanelOutputs + o % kPanelOutputs], rounded(i) | rounded(i + 1) << 16) << o << " " << i;
      }
    }
  }
}

TEST(PackedProduct, StoredWeightsArePackedAsTheirNumbersAre) {
  if (packed_kernels() == nullptr) GTEST_SKIP() << "this CPU has no dot products of BF16";
  start_ggml();
  const std::pair<StoredFormat, ggml_type> formats[] = {
      {StoredFormat::kQ4_0, GGML_TYPE_Q4_0}, {StoredFormat::kQ4_1, GGML_TYPE_Q4_1}, {StoredFormat::kQ8_0, GGML_TYPE_Q8_0}};
  for (const auto& [format, type] : formats) {
    for (const Case& size : kCases) {
      const std::size_t outputs = std::min(size.outputs, kPanelOutputs);
      const auto inputs = static_cast<std::int64_t>(size.inputs);
      const std::vector<float> exact = normals(size.inputs * outputs, 2);
      std::vector<std::byte> stored(outputs * ggml_row_size(type, inputs));
      ggml_quantize_chunk(type, exact.data(), stored.data(), 0, static_cast<std::int64_t>(outputs), inputs, nullptr);
      std::vector<float> weights(exact.size());
      ggml_get_type_traits(type)->to_float(stored.data(), weights.data(), static_cast<std::int64_t>(weights.size()));
      std::vector<std::uint32_t> panel(kPanelOutputs * size.inputs / 2, 0xffffffffU);
      packed_kernels()->pack_stored(stored.data(), format, size.inputs, outputs, panel.data());
      EXPECT_EQ(panel, packed(weights, size.inputs, outputs)) << ggml_type_name(type) << " " << size.inputs << " " << outputs;
    }
  }
}

TEST(PackedProduct, EqualsTheSumInDoubleWhereverRowsAreCut) {
  if (packed_kernels() == nullptr) GTEST_SKIP() << "this CPU has no dot products of BF16";
  for (const Case& size : kCases) {
    SCOPED_TRACE(std::to_string(size.inputs) + "x" + std::to_string(size.outputs) + "x" + std::to_string(size.rows));
    const std::vector<float> weights = normals(size.inputs * size.outputs, 3);
    const std::vector<std::uint32_t> panels = packed(weights, size.inputs, size.outputs);
    const std::vector<float> exact = normals(size.inputs * size.rows, 4);
    std::vector<std::uint16_t> x(exact.size());
    packed_kernels()->round(exact.data(), exact.size(), x.data());
    const auto product = [&](std::size_t step) {
      std::vector<float> out(size.rows * size.outputs + 1, 7);
      PackedProduct p{panels.data(), size.inputs, size.outputs, x.data(), size.rows, nullptr, size.outputs};
      for (std::size_t panel = 0; panel < panel_count(size.outputs); ++panel) {
        for (std::size_t row = 0; row < size.rows; row += step) {
          p.out = out.data() + row * size.outputs + panel * kPanelOutputs;
          packed_kernels()->multiply(p, panel, row, std::min(row + step, size.rows));
        }
      }
      return out;
    };
    const std::vector<float> whole = product(size.rows);
    EXPECT_EQ(whole.back(), 7);
    for (const std::size_t step : {1U, 2U, 5U, 6U}) EXPECT_EQ(product(step), whole) << step;
    for (std::size_t r = 0; r < size.rows; ++r) {
      for (std::size_t o = 0; o < size.outputs; ++o) {
        double sum = 0;
        double magnitude = 0;
        for (std::size_t i = 0; i < size.inputs; ++i) {
          const double term = double{float_from_bf16(x[r * size.inputs + i])} *
                              double{float_from_bf16(bf16_from_float(weights[o * size.inputs + i]))};
          sum += term;
          magnitude += std::fabs(term);
        }
        EXPECT_NEAR(whole[r * size.outputs + o], sum, 1e-6 * magnitude);
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
