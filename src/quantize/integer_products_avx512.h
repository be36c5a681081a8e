// What the VNNI twins of the tile kernels share: sums[query, lane] += x[query, step] * code(step, lane) in integers.
//
// vpdpbusd multiplies four unsigned bytes of a lane by four signed ones and adds them up, a million million times a second
// where floats have a quarter of that. Codes (or their levels) are the unsigned bytes as they are unpacked. The coefficient x,
// a query or a softmax weight times the scale of its channel or row, is rounded once to 16 bits of the largest of its run and
// cut in two signed digits, 256 * high + low; both multiply the same unpacked codes. So the added error is that of one
// rounding to 2^-16 of the largest coefficient: near-exact, where one digit alone would cost a percent. The sums themselves
// are exact, in any order.
#pragma once

#include "simd/avx512.h"

#if KVARTET_HAS_AVX512

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quantize/tile_format.h"

#define KVARTET_VNNI_INLINE inline __attribute__((always_inline))

KVARTET_BEGIN_VNNI
namespace kvartet::vnni {
namespace {

inline constexpr std::size_t kLanes = 16;       // of a vector
inline constexpr std::size_t kBlockLanes = 32;  // tokens or channels that lie together in every layout
inline constexpr std::size_t kRunSteps = 16;    // coefficients that are cut in digits together
inline constexpr std::size_t kDigitBytes = 2 * kRunSteps;
inline constexpr float kLargest = 32639.0F;  // 256 * 127 + 127
inline constexpr float kSmallest = 1e-30F;   // a largest coefficient below this is nothing

// Bytes from a tile to the next one, as in lane_products-inl.h.
KVARTET_VNNI_INLINE std::uintptr_t bytes_ahead(const void* tile, const void* next) {
  return next == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(next) - reinterpret_cast<std::uintptr_t>(tile);
}
KVARTET_VNNI_INLINE void prefetch_ahead(const void* p, std::uintptr_t ahead) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + ahead), _MM_HINT_T0);
}

KVARTET_VNNI_INLINE __m512 load_f16(const std::uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Lanes [begin, end) of a vector whose first lane is `at`.
KVARTET_VNNI_INLINE __mmask16 lanes_in(std::size_t at, std::size_t begin, std::size_t end) {
  const std::uint32_t from = at < begin ? (begin - at < kLanes ? 0xffffU << (begin - at) : 0U) : 0xffffU;
  const std::uint32_t to = at < end ? (end - at < kLanes ? 0xffffU >> (kLanes - (end - at)) : 0xffffU) : 0U;
  return static_cast<__mmask16>(from & to);
}

// What a run's largest coefficient makes of it: digits are coefficients times `inverse`, and `step` is worth one.
struct Grid {
  float step = 0;
  float inverse = 0;
  explicit KVARTET_VNNI_INLINE Grid(float largest)
      : step(largest * (1.0F / kLargest)), inverse(largest < kSmallest ? 0.0F : kLargest / largest) {}
};

// Digits of 16 whole numbers within +-kLargest: 16 high ones, then 16 low ones.
KVARTET_VNNI_INLINE __m256i digits_of(__m512i numbers) {
  const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(numbers, _mm512_set1_epi32(128)), 8);
  return _mm256_set_m128i(_mm512_cvtepi32_epi8(numbers), _mm512_cvtepi32_epi8(high));
}

// The sums of the 32 lanes of a block.
template <int kQueries>
struct DigitSums {
  __m512i high[kQueries][2];
  __m512i low[kQueries][2];

  KVARTET_VNNI_INLINE void clear() {
#pragma GCC unroll 4
    for (int k = 0; k < kQueries; ++k) {
      high[k][0] = high[k][1] = low[k][0] = low[k][1] = _mm512_setzero_si512();
    }
  }
  // Whole numbers; they wrap on the way and are right in the end.
  KVARTET_VNNI_INLINE __m512i total(int k, int v) const { return _mm512_add_epi32(_mm512_slli_epi32(high[k][v], 8), low[k][v]); }
};

KVARTET_VNNI_INLINE __m512i four_digits(const std::int8_t* digits) {
  std::int32_t four = 0;
  std::memcpy(&four, digits, sizeof(four));
  return _mm512_set1_epi32(four);
}

// Quads kQuad to kEnd of steps. codes.quad<kQuad, kVector>(words) has the codes of four steps in the bytes of each lane.
// digits: [run of 16 steps][kQueries][kDigitBytes].
template <int kQuad, int kEnd, class Codes, int kQueries>
KVARTET_VNNI_INLINE void add_quads(const Codes& codes, const std::uint32_t* words, const std::int8_t* digits,
                                   DigitSums<kQueries>& sums) {
  const __m512i code0 = codes.template quad<kQuad, 0>(words);
  const __m512i code1 = codes.template quad<kQuad, 1>(words);
#pragma GCC unroll 4
  for (int k = 0; k < kQueries; ++k) {
    const std::int8_t* const of_query = digits + (kQuad / 4 * kQueries + k) * static_cast<int>(kDigitBytes) + kQuad % 4 * 4;
    const __m512i high = four_digits(of_query);
    const __m512i low = four_digits(of_query + kRunSteps);
    sums.high[k][0] = _mm512_dpbusd_epi32(sums.high[k][0], code0, high);
    sums.high[k][1] = _mm512_dpbusd_epi32(sums.high[k][1], code1, high);
    sums.low[k][0] = _mm512_dpbusd_epi32(sums.low[k][0], code0, low);
    sums.low[k][1] = _mm512_dpbusd_epi32(sums.low[k][1], code1, low);
  }
  if constexpr (kQuad + 1 < kEnd) add_quads<kQuad + 1, kEnd>(codes, words, digits, sums);
}

// Lane i of the result is the reduction of vectors[i], the same for all i: four steps for all of them, not four for each.
KVARTET_VNNI_INLINE float largest_of(float a, float b, float c, float d) {
  const float ab = a < b ? b : a;
  const float cd = c < d ? d : c;
  return ab < cd ? cd : ab;
}
struct Largest {
  static KVARTET_VNNI_INLINE __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};
struct Sum {
  static KVARTET_VNNI_INLINE __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};
struct NumberSum {  // of int32 in the same bits
  static KVARTET_VNNI_INLINE __m512 of(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
};
template <class Reduction>
KVARTET_VNNI_INLINE __m512 reduce_four(const __m512* v) {
  const __m512 a = Reduction::of(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 b = Reduction::of(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  return Reduction::of(_mm512_castpd_ps(low), _mm512_castpd_ps(high));  // in every 128 bits
}
template <class Reduction>
KVARTET_VNNI_INLINE __m512 reduce_eight(const __m512* v) {
  const __m512 a = reduce_four<Reduction>(v);
  const __m512 b = reduce_four<Reduction>(v + 4);
  return Reduction::of(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));  // in every 256 bits
}
template <class Reduction>
KVARTET_VNNI_INLINE __m512 reduce_sixteen(const __m512* v) {
  const __m512 a = reduce_eight<Reduction>(v);
  const __m512 b = reduce_eight<Reduction>(v + 8);
  return Reduction::of(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

inline constexpr int kFoldGroups = 4;  // that are folded together: with four queries 16 sums

// x[query, i] = from[query, i] * scale[group, i] for i in whole runs that hold [begin, end); elsewhere 0, whatever the scales
// of rows that are not there yet.
struct FoldSource {
  const float* from = nullptr;  // of i = `begin`; not read outside [begin, end)
  std::size_t from_stride = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  const std::uint16_t* scales = nullptr;  // f16, of i = 0; groups lie group_stride apart
  const std::uint16_t* zeros = nullptr;   // likewise; not read without kZeros
  // Zero points are taken this many scales further up, to the middle of the codes: what rounding a coefficient costs is
  // multiplied by the code, and codes that lie around 0 are half as large as those above it.
  float center = 0;
  std::size_t group_stride = 0;
  std::uintptr_t ahead = 0;

  std::size_t first() const { return begin / 32 * 32; }
  std::size_t runs() const { return ((end + 31) / 32 * 32 - first()) / kRunSteps; }
};

// Digits of up to kFoldGroups groups, each on the grid of its largest coefficient.
template <int kQueries>
struct FoldedGroups {
  alignas(64) float step[kLanes];  // [group][kQueries]: what one is worth
  alignas(64) float inverse[kLanes];
  alignas(64) float offset[kLanes];             // sum of from * (zero + center * scale)
  alignas(64) std::int32_t number_sum[kLanes];  // of the whole numbers

  static KVARTET_VNNI_INLINE int at(std::size_t group, int k) { return static_cast<int>(group) * kQueries + k; }
};

enum class Zeros : std::uint8_t { kNone, kAdd };

// Order::of(digits) puts the digits of a run where the codes of its steps come. digits: [groups][runs][kQueries][kDigitBytes].
template <class Order, Zeros kZeros, int kQueries>
KVARTET_VNNI_INLINE void fold_groups(const FoldSource& source, std::size_t groups, std::int8_t* digits,
                                     FoldedGroups<kQueries>& folded) {
  const std::size_t first = source.first();
  const std::size_t runs = source.runs();
  const float* const from =
      reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(source.from) - (source.begin - first) * sizeof(float));
  __m512 largest[kLanes];
  __m512 offset[kLanes];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kLanes; ++i) largest[i] = offset[i] = _mm512_setzero_ps();
  for (std::size_t g = 0; g < groups; ++g) {
    const std::uint16_t* const scales = source.scales + g * source.group_stride + first;
    const std::uint16_t* const zeros = source.zeros + g * source.group_stride + first;
    __m512 group_largest[kQueries];
    __m512 group_offset[kQueries];
#pragma GCC unroll 4
    for (int k = 0; k < kQueries; ++k) group_largest[k] = group_offset[k] = _mm512_setzero_ps();
    for (std::size_t r = 0; r < runs; ++r) {
      const std::size_t i = r * kRunSteps;
      if (r % 2 == 0) {
        prefetch_ahead(scales + i, source.ahead);
        if constexpr (kZeros == Zeros::kAdd) prefetch_ahead(zeros + i, source.ahead);
      }
      const __mmask16 wanted = lanes_in(first + i, source.begin, source.end);
      const __m512 scale = _mm512_maskz_mov_ps(wanted, load_f16(scales + i));
      __m512 zero = _mm512_setzero_ps();
      if constexpr (kZeros == Zeros::kAdd) {
        zero = _mm512_fmadd_ps(scale, _mm512_set1_ps(source.center), _mm512_maskz_mov_ps(wanted, load_f16(zeros + i)));
      }
#pragma GCC unroll 4
      for (int k = 0; k < kQueries; ++k) {
        const __m512 x = _mm512_maskz_loadu_ps(wanted, from + static_cast<std::size_t>(k) * source.from_stride + i);
        group_largest[k] = _mm512_max_ps(group_largest[k], _mm512_abs_ps(_mm512_mul_ps(x, scale)));
        if constexpr (kZeros == Zeros::kAdd) group_offset[k] = _mm512_fmadd_ps(x, zero, group_offset[k]);
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < kQueries; ++k) {
      largest[folded.at(g, k)] = group_largest[k];
      if constexpr (kZeros == Zeros::kAdd) offset[folded.at(g, k)] = group_offset[k];
    }
  }
  const __m512 most = reduce_sixteen<Largest>(largest);
  const __mmask16 something = _mm512_cmp_ps_mask(most, _mm512_set1_ps(kSmallest), _CMP_GE_OQ);
  _mm512_store_ps(folded.step, _mm512_mul_ps(most, _mm512_set1_ps(1.0F / kLargest)));
  _mm512_store_ps(folded.inverse, _mm512_maskz_div_ps(something, _mm512_set1_ps(kLargest), most));
  if constexpr (kZeros == Zeros::kAdd) _mm512_store_ps(folded.offset, reduce_sixteen<Sum>(offset));

  __m512 number_sums[kLanes];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kLanes; ++i) number_sums[i] = _mm512_setzero_ps();
  for (std::size_t g = 0; g < groups; ++g) {
    const std::uint16_t* const scales = source.scales + g * source.group_stride + first;
    __m512i number_sum[kQueries];
    __m512 inverse[kQueries];
#pragma GCC unroll 4
    for (int k = 0; k < kQueries; ++k) {
      number_sum[k] = _mm512_setzero_si512();
      inverse[k] = _mm512_set1_ps(folded.inverse[folded.at(g, k)]);
    }
    for (std::size_t r = 0; r < runs; ++r, digits += kQueries * kDigitBytes) {
      const std::size_t i = r * kRunSteps;
      const __mmask16 wanted = lanes_in(first + i, source.begin, source.end);
      const __m512 scale = _mm512_maskz_mov_ps(wanted, load_f16(scales + i));
#pragma GCC unroll 4
      for (int k = 0; k < kQueries; ++k) {
        const __m512 x = _mm512_maskz_loadu_ps(wanted, from + static_cast<std::size_t>(k) * source.from_stride + i);
        const __m512i numbers = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_mul_ps(x, scale), inverse[k]));
        number_sum[k] = _mm512_add_epi32(number_sum[k], numbers);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(digits + k * static_cast<int>(kDigitBytes)),
                            Order::of(digits_of(numbers)));
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < kQueries; ++k) number_sums[folded.at(g, k)] = _mm512_castsi512_ps(number_sum[k]);
  }
  _mm512_store_si512(folded.number_sum, _mm512_castps_si512(reduce_sixteen<NumberSum>(number_sums)));
}

// Queries that no scale goes into: one grid for each, sums for every group of channels. digits: [runs][kQueries][kDigitBytes].
template <int kQueries>
KVARTET_VNNI_INLINE void fold_queries(const float* q, std::size_t q_stride, std::size_t channels, std::size_t group,
                                      std::int8_t* digits, float* step, std::int32_t* number_sum, float* sum) {
  __m512 largest[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    largest[k] = _mm512_setzero_ps();
    for (std::size_t c = 0; k < kQueries && c < channels; c += kLanes) {
      largest[k] = _mm512_max_ps(largest[k], _mm512_abs_ps(_mm512_loadu_ps(q + static_cast<std::size_t>(k) * q_stride + c)));
    }
  }
  alignas(64) float of_query[kLanes];
  _mm512_store_ps(of_query, reduce_four<Largest>(largest));
  __m512 inverse[kQueries];
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kQueries; ++k) {
    const Grid grid(largest_of(of_query[k], of_query[4 + k], of_query[8 + k], of_query[12 + k]));
    step[k] = grid.step;
    inverse[k] = _mm512_set1_ps(grid.inverse);
  }
  for (std::size_t c = 0; c < channels; number_sum += kQueries, sum += kQueries) {
    __m512 number_sums[4];
    __m512 sums[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) number_sums[k] = sums[k] = _mm512_setzero_ps();
    for (const std::size_t end = c + group; c < end; c += kRunSteps, digits += kQueries * kDigitBytes) {
#pragma GCC unroll 4
      for (int k = 0; k < kQueries; ++k) {
        const __m512 x = _mm512_loadu_ps(q + static_cast<std::size_t>(k) * q_stride + c);
        const __m512i numbers = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse[k]));
        number_sums[k] = NumberSum::of(number_sums[k], _mm512_castsi512_ps(numbers));
        sums[k] = _mm512_add_ps(sums[k], x);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(digits + k * static_cast<int>(kDigitBytes)), digits_of(numbers));
      }
    }
    alignas(64) std::int32_t numbers[kLanes];
    alignas(64) float of_group[kLanes];
    _mm512_store_si512(numbers, _mm512_castps_si512(reduce_four<NumberSum>(number_sums)));
    _mm512_store_ps(of_group, reduce_four<Sum>(sums));
#pragma GCC unroll 4
    for (int k = 0; k < kQueries; ++k) {
      number_sum[k] = numbers[k] + numbers[4 + k] + numbers[8 + k] + numbers[12 + k];
      sum[k] = (of_group[k] + of_group[4 + k]) + (of_group[8 + k] + of_group[12 + k]);
    }
  }
}

// Steps in the order of planar codes: as they come.
struct PlainOrder {
  static KVARTET_VNNI_INLINE __m256i of(__m256i digits) { return digits; }
};

// Calls Kernel::run<n>(format, args, first query) with n of 1 to 4 until every query has had its turn.
template <class Kernel, class Args>
KVARTET_VNNI_INLINE void for_query_chunks(const TileFormat& format, const Args& args) {
  std::size_t query = 0;
  std::size_t left = static_cast<std::size_t>(args.queries);
  while (left > 0) {
    const std::size_t take = left == 5 || left == 6 ? 3 : (left < 4 ? left : 4);
    if (take == 4) Kernel::template run<4>(format, args, query);
    if (take == 3) Kernel::template run<3>(format, args, query);
    if (take == 2) Kernel::template run<2>(format, args, query);
    if (take == 1) Kernel::template run<1>(format, args, query);
    query += take;
    left -= take;
  }
}

}  // namespace
}  // namespace kvartet::vnni
KVARTET_END_AVX512

#endif
