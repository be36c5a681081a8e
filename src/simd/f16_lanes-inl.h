// Lanes of IEEE binary16 in memory as std::uint16_t, per target. Both directions are exact to the bit on every target:
// below AVX2 Highway's own narrowing cuts instead of rounding, so it is written out here.
#if defined(KVARTET_SIMD_F16_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTET_SIMD_F16_LANES_INL_H_
#undef KVARTET_SIMD_F16_LANES_INL_H_
#else
#define KVARTET_SIMD_F16_LANES_INL_H_
#endif

#include <cstdint>

#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> load_f16(D d, const std::uint16_t* HWY_RESTRICT p) {
  const hn::Rebind<hwy::float16_t, D> dh;
  const hn::Rebind<std::uint16_t, D> du;
  return hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(du, p)));
}

// Rounds to nearest even. The input must be finite and at most 65,504 after rounding.
template <class D>
HWY_INLINE void store_f16(hn::Vec<D> x, D d, std::uint16_t* HWY_RESTRICT p) {
  const hn::Rebind<std::uint16_t, D> du16;
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, D> dh;
  hn::StoreU(hn::BitCast(du16, hn::DemoteTo(dh, x)), du16, p);
#else
  // As f16_from_float in core/float16.h, for both ranges at once.
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, x);
  const auto abs = hn::And(bits, hn::Set(di, 0x7fffffff));
  const auto odd = hn::And(hn::ShiftRight<13>(abs), hn::Set(di, 1));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Sub(abs, hn::Set(di, 0x38000000 - 0xfff)), odd));
  const auto shifted = hn::BitCast(di, hn::Add(hn::BitCast(d, abs), hn::Set(d, 0.5F)));
  const auto tiny = hn::Sub(shifted, hn::Set(di, 0x3f000000));
  const auto magnitude = hn::IfThenElse(hn::Lt(abs, hn::Set(di, 0x38800000)), tiny, normal);
  alignas(64) std::int32_t lanes[hn::MaxLanes(D())];
  hn::Store(hn::Or(magnitude, hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000))), di, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) p[i] = static_cast<std::uint16_t>(lanes[i]);
  (void)du16;
#endif
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
