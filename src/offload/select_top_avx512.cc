// What is not below a threshold by compressing vectors, and exponentials by the instructions that take numbers apart and put
// them together again.
#include <cstddef>
#include <cstdint>
#include <limits>

#include "offload/select_kernels.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet {
namespace {

constexpr std::size_t kLanes = 16;
constexpr float kLog2E = 1.44269504F;

inline __mmask16 first_lanes(std::size_t count) { return static_cast<__mmask16>(count >= kLanes ? 0xffffU : (1U << count) - 1); }

// Compressed in a register and stored whole: a compressing store is many times slower on some of these CPUs. No branch, for
// whether one vector holds any is as good as random.
std::size_t not_below(const float* scores, std::size_t count, float threshold, std::int32_t* found, std::int32_t* keys) {
  const __m512 limit = _mm512_set1_ps(threshold);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i step = _mm512_set1_epi32(kLanes);
  __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; i += kLanes) {
    const __mmask16 here = first_lanes(count - i);
    const __m512 x = _mm512_maskz_loadu_ps(here, scores + i);
    const __mmask16 wanted = _mm512_mask_cmp_ps_mask(here, x, limit, _CMP_NLT_UQ);  // a NaN is below nothing
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(x, _mm512_setzero_ps()));
    const __m512i key = _mm512_xor_si512(bits, _mm512_and_si512(_mm512_srai_epi32(bits, 31), magnitude));
    _mm512_storeu_si512(found + at, _mm512_maskz_compress_epi32(wanted, index));
    _mm512_storeu_si512(keys + at, _mm512_maskz_compress_epi32(wanted, key));
    at += static_cast<std::size_t>(__builtin_popcount(wanted));
    index = _mm512_add_epi32(index, step);
  }
  return at;
}

// 2^x for x <= 0, relative error below 4e-6.
inline __m512 exp2_below_one(__m512 x) {
  constexpr int kToNearest = 0;
  const __m512 part = _mm512_reduce_ps(x, kToNearest);
  __m512 p = _mm512_set1_ps(0.0096663685F);
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.055921976F));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.24022349F));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.69312105F));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, _mm512_sub_ps(x, part));
}

void max_and_sum(const float* x, std::size_t count, float* max, float* sum) {
  const __m512 least = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 most[2] = {least, least};
  std::size_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    most[0] = _mm512_max_ps(most[0], _mm512_loadu_ps(x + i));
    most[1] = _mm512_max_ps(most[1], _mm512_loadu_ps(x + i + kLanes));
  }
  for (; i < count; i += kLanes) most[0] = _mm512_max_ps(most[0], _mm512_mask_loadu_ps(least, first_lanes(count - i), x + i));
  *max = _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1]));
  const __m512 factor = _mm512_set1_ps(kLog2E);
  const __m512 offset = _mm512_set1_ps(*max);
  __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    for (int k = 0; k < 2; ++k) {
      const __m512 below = _mm512_sub_ps(_mm512_loadu_ps(x + i + static_cast<std::size_t>(k) * kLanes), offset);
      total[k] = _mm512_add_ps(total[k], exp2_below_one(_mm512_mul_ps(below, factor)));
    }
  }
  for (; i < count; i += kLanes) {
    const __mmask16 here = first_lanes(count - i);
    const __m512 below = _mm512_sub_ps(_mm512_maskz_loadu_ps(here, x + i), offset);
    total[0] = _mm512_mask_add_ps(total[0], here, total[0], exp2_below_one(_mm512_mul_ps(below, factor)));
  }
  *sum = _mm512_reduce_add_ps(_mm512_add_ps(total[0], total[1]));
}

}  // namespace
}  // namespace kvartet
KVARTET_END_AVX512
#endif

namespace kvartet {

SelectKernels select_kernels_avx512() {
#if KVARTET_HAS_AVX512
  if (uses_extension(SimdExtension::kVnni)) return {not_below, max_and_sum};
#endif
  return {};
}

}  // namespace kvartet
