#include "quantize/walsh_hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/walsh_hadamard.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A lane that holds the second of a pair becomes first - second, the others first + second; `swapped` has the partners and
// `sign_of_second` the sign bits to turn.
template <class V>
HWY_INLINE V butterfly(V x, V swapped, V sign_of_second) {
  return hn::Add(swapped, hn::Xor(x, sign_of_second));
}

// Stages inside a vector of four or eight lanes.
template <class D>
HWY_INLINE hn::Vec<D> stages_in_vector(D d, hn::Vec<D> x) {
  alignas(32) static constexpr float kSecond[3][8] = {{0.0F, -0.0F, 0.0F, -0.0F, 0.0F, -0.0F, 0.0F, -0.0F},
                                                      {0.0F, 0.0F, -0.0F, -0.0F, 0.0F, 0.0F, -0.0F, -0.0F},
                                                      {0.0F, 0.0F, 0.0F, 0.0F, -0.0F, -0.0F, -0.0F, -0.0F}};
  x = butterfly(x, hn::Shuffle2301(x), hn::Load(d, kSecond[0]));
  x = butterfly(x, hn::Shuffle1032(x), hn::Load(d, kSecond[1]));
  if constexpr (hn::MaxLanes(D()) == 8) x = butterfly(x, hn::SwapAdjacentBlocks(x), hn::Load(d, kSecond[2]));
  return x;
}

void transform(float* HWY_RESTRICT x, std::size_t n) {
  const hn::CappedTag<float, 8> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  std::size_t half = 1;
  if (n >= kLanes) {
    for (std::size_t i = 0; i < n; i += kLanes) hn::StoreU(stages_in_vector(d, hn::LoadU(d, x + i)), d, x + i);
    for (half = kLanes; half < n; half *= 2) {
      for (std::size_t first = 0; first < n; first += 2 * half) {
        for (std::size_t i = first; i < first + half; i += kLanes) {
          const auto a = hn::LoadU(d, x + i);
          const auto b = hn::LoadU(d, x + i + half);
          hn::StoreU(hn::Add(a, b), d, x + i);
          hn::StoreU(hn::Sub(a, b), d, x + i + half);
        }
      }
    }
    return;
  }
  for (; half < n; half *= 2) {
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
