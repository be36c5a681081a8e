// The points of HIGGS codes as vectors, per target (quantize/higgs.h).
#if defined(KVARTET_QUANTIZE_HIGGS_POINTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTET_QUANTIZE_HIGGS_POINTS_INL_H_
#undef KVARTET_QUANTIZE_HIGGS_POINTS_INL_H_
#else
#define KVARTET_QUANTIZE_HIGGS_POINTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "quantize/walsh_hadamard-inl.h"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The points of some codes side by side: a vector.
template <int kP, class D>
HWY_INLINE hn::Vec<D> points_of(D d, const float* HWY_RESTRICT points, const std::uint8_t* HWY_RESTRICT codes) {
  const hn::FixedTag<float, 4> d4;
  if constexpr (hn::MaxLanes(D()) == 8) {
    constexpr int kHalf = 4 / kP;
    return hn::Combine(d, points_of<kP>(d4, points, codes + kHalf), points_of<kP>(d4, points, codes));
  } else if constexpr (kP == 4) {
    return hn::LoadU(d, points + std::size_t{4} * codes[0]);
  } else {
    const hn::FixedTag<float, 2> d2;
    return hn::Combine(d, hn::LoadU(d2, points + std::size_t{2} * codes[1]), hn::LoadU(d2, points + std::size_t{2} * codes[0]));
  }
}

// x = the transform of scale * the codes' points, of which there are n numbers, a multiple of eight vectors. The bits that the
// obvious way gives: numbers first, then the transform.
template <int kP>
HWY_INLINE void decode_points(const float* HWY_RESTRICT points, const std::uint8_t* HWY_RESTRICT codes, std::size_t n,
                              float scale, float* HWY_RESTRICT x) {
  const hn::CappedTag<float, 8> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  const auto factor = hn::Set(d, scale);
  for (std::size_t first = 0; first < n; first += kHadamardVectors * kLanes) {
    hn::Vec<decltype(d)> all[kHadamardVectors];
    for (std::size_t i = 0; i < kHadamardVectors; ++i) {
      const auto numbers = points_of<kP>(d, points, codes + (first + i * kLanes) / kP);
      all[i] = stages_in_vector(d, hn::Mul(factor, numbers));
    }
    stages_across(all);
    for (std::size_t i = 0; i < kHadamardVectors; ++i) hn::StoreU(all[i], d, x + first + i * kLanes);
  }
  stages_in_memory(d, x, kHadamardVectors * kLanes, n);
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
