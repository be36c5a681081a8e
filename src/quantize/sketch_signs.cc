#include "quantize/sketch_signs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/sketch_signs.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Lanes = HWY_CAPPED(float, 16);
using V = hn::Vec<Lanes>;
constexpr Lanes kTag;
constexpr std::size_t kVector = hn::MaxLanes(Lanes());
static_assert(kSketchRows % kVector == 0);

// Not a multiply-add: dot_product rounds each product.
HWY_INLINE void add_product(V weight, const float* HWY_RESTRICT column, V& sum) {
  sum = hn::Add(sum, hn::Mul(weight, hn::Load(kTag, column)));
}

HWY_INLINE V dot_products(const float* HWY_RESTRICT weights, std::size_t dim, const float* HWY_RESTRICT columns) {
  V p0 = hn::Zero(kTag), p1 = p0, p2 = p0, p3 = p0, p4 = p0, p5 = p0, p6 = p0, p7 = p0;
  for (std::size_t c = 0; c < dim; c += 8) {
    const float* HWY_RESTRICT w = weights + c;
    const float* HWY_RESTRICT x = columns + c * kSketchRows;
    add_product(hn::Set(kTag, w[0]), x, p0);
    add_product(hn::Set(kTag, w[1]), x + kSketchRows, p1);
    add_product(hn::Set(kTag, w[2]), x + 2 * kSketchRows, p2);
    add_product(hn::Set(kTag, w[3]), x + 3 * kSketchRows, p3);
    add_product(hn::Set(kTag, w[4]), x + 4 * kSketchRows, p4);
    add_product(hn::Set(kTag, w[5]), x + 5 * kSketchRows, p5);
    add_product(hn::Set(kTag, w[6]), x + 6 * kSketchRows, p6);
    add_product(hn::Set(kTag, w[7]), x + 7 * kSketchRows, p7);
  }
  return hn::Add(hn::Add(hn::Add(p0, p4), hn::Add(p2, p6)), hn::Add(hn::Add(p1, p5), hn::Add(p3, p7)));
}

void sketch_signs(const float* sketch, std::size_t count, std::size_t dim, const float* columns, std::uint8_t* signs) {
  alignas(64) float products[kVector];
  for (std::size_t j = 0; j < count; ++j) {
    for (std::size_t row = 0; row < kSketchRows; row += kVector) {
      hn::Store(dot_products(sketch + j * dim, dim, columns + row), kTag, products);
      for (std::size_t i = 0; i < kVector; ++i) signs[(row + i) * count + j] = products[i] >= 0.0F ? 1 : 0;
    }
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(sketch_signs);

void sketch_signs(const float* sketch, std::size_t count, std::size_t dim, const float* columns, std::uint8_t* signs) {
  SIMD_CHOOSE(sketch_signs)(sketch, count, dim, columns, signs);
}

}  // namespace kvartet
#endif
