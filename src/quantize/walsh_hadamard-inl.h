// Stages of the Hadamard transform in registers, per target (quantize/walsh_hadamard.h).
#if defined(KVARTET_QUANTIZE_WALSH_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTET_QUANTIZE_WALSH_HADAMARD_INL_H_
#undef KVARTET_QUANTIZE_WALSH_HADAMARD_INL_H_
#else
#define KVARTET_QUANTIZE_WALSH_HADAMARD_INL_H_
#endif

#include <cstddef>

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

inline constexpr std::size_t kHadamardVectors = 8;  // that are transformed together

template <std::size_t kHalf, class V>
HWY_INLINE void stage_across(V (&x)[kHadamardVectors]) {
  for (std::size_t i = 0; i < kHadamardVectors; ++i) {
    if ((i & kHalf) != 0) continue;
    const V a = x[i];
    const V b = x[i + kHalf];
    x[i] = hn::Add(a, b);
    x[i + kHalf] = hn::Sub(a, b);
  }
}

// What is left to do for eight vectors' numbers once the stages inside the vectors are done.
template <class V>
HWY_INLINE void stages_across(V (&x)[kHadamardVectors]) {
  stage_across<1>(x);
  stage_across<2>(x);
  stage_across<4>(x);
}

// The stages of numbers at least `half` apart, a multiple of the vector, in memory.
template <class D>
HWY_INLINE void stages_in_memory(D d, float* HWY_RESTRICT x, std::size_t half, std::size_t n) {
  for (; half < n; half *= 2) {
    for (std::size_t first = 0; first < n; first += 2 * half) {
      for (std::size_t i = first; i < first + half; i += hn::Lanes(d)) {
        const auto a = hn::LoadU(d, x + i);
        const auto b = hn::LoadU(d, x + i + half);
        hn::StoreU(hn::Add(a, b), d, x + i);
        hn::StoreU(hn::Sub(a, b), d, x + i + half);
      }
    }
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
