#include "quantize/f16_numbers.h"

#include <cstdint>

#include "core/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/f16_numbers.cc"
#include "simd/dispatch.h"

#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Magnitudes order like their bits, with infinity and NaN on top.
int narrow_if_finite(const float* HWY_RESTRICT from, std::size_t count, std::uint16_t* HWY_RESTRICT to) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto limit = hn::BitCast(di, hn::Set(d, 65520.0F));  // rounds to 65,536, which f16 does not have
  const auto magnitude = hn::Set(di, 0x7fffffff);
  auto largest = hn::Zero(di);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto x = hn::LoadU(d, from + i);
    largest = hn::Max(largest, hn::And(hn::BitCast(di, x), magnitude));
    store_f16(x, d, to + i);
  }
  return hn::AllTrue(di, hn::Lt(largest, limit)) ? 1 : 0;
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(narrow_if_finite);

bool narrow_finite_f16(std::span<const float> numbers, std::byte* out) {
  KV_DCHECK(numbers.size() % 8 == 0);
  return SIMD_CHOOSE(narrow_if_finite)(numbers.data(), numbers.size(), reinterpret_cast<std::uint16_t*>(out)) != 0;
}

}  // namespace kvartet
#endif
