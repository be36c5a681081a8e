#include "quantize/walsh_hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/walsh_hadamard.cc"
#include "simd/dispatch.h"

#include "quantize/walsh_hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void transform(float* HWY_RESTRICT x, std::size_t n) {
  const hn::CappedTag<float, 8> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr std::size_t kTogether = kHadamardVectors * kLanes;
  if (n >= kTogether) {
    for (std::size_t first = 0; first < n; first += kTogether) {
      hn::Vec<decltype(d)> all[kHadamardVectors];
      for (std::size_t i = 0; i < kHadamardVectors; ++i) all[i] = stages_in_vector(d, hn::LoadU(d, x + first + i * kLanes));
      stages_across(all);
      for (std::size_t i = 0; i < kHadamardVectors; ++i) hn::StoreU(all[i], d, x + first + i * kLanes);
    }
    return stages_in_memory(d, x, kTogether, n);
  }
  if (n >= kLanes) {
    for (std::size_t i = 0; i < n; i += kLanes) hn::StoreU(stages_in_vector(d, hn::LoadU(d, x + i)), d, x + i);
    return stages_in_memory(d, x, kLanes, n);
  }
  for (std::size_t half = 1; half < n; half *= 2) {
    for (std::size_t i = 0; i < n; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i];
      const float b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(transform);

void walsh_hadamard(float* x, std::size_t n) { SIMD_CHOOSE(transform)(x, n); }

}  // namespace kvartet
#endif
