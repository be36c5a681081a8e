// The same signs on every instruction set: those of the plain sums that a row's channels have in every format.
#include "quantize/sketch_signs.h"

#include <vector>

#include <gtest/gtest.h>

#include "core/normals_fixture.h"
#include "quantize/row_rotation.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

class SketchSignsOnTarget : public testing::TestWithParam<SimdTarget> {
 protected:
  ScopedSimdTarget scope_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, SketchSignsOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SketchSignsOnTarget, EqualThoseOfDotProducts) {
  for (const std::size_t dim : {8U, 64U, 72U, 128U}) {
    SCOPED_TRACE(dim);
    constexpr std::size_t kCount = 96;
    const std::vector<float> sketch = normals(kCount * dim, 1);
    std::vector<float> rows = normals(kSketchRows * dim, 2);
    std::fill_n(rows.begin(), dim, 0.0F);  // a row of zeros has products of 0, whose sign is 1
    alignas(64) float columns[128 * kSketchRows];
    for (std::size_t r = 0; r < kSketchRows; ++r) {
      for (std::size_t c = 0; c < dim; ++c) columns[c * kSketchRows + r] = rows[r * dim + c];
    }
    std::vector<std::uint8_t> signs(kSketchRows * kCount, 7);
    sketch_signs(sketch.data(), kCount, dim, columns, signs.data());
    for (std::size_t r = 0; r < kSketchRows; ++r) {
      for (std::size_t j = 0; j < kCount; ++j) {
        const int want = dot_product(sketch.data() + j * dim, rows.data() + r * dim, dim) >= 0.0F ? 1 : 0;
        ASSERT_EQ(signs[r * kCount + j], want) << r << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
