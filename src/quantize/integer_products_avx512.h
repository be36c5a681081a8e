// What the VNNI twins of the tile kernels share: sums[query, lane] += x[query, step] * code(step, lane) in integers.
//
// vpdpbusd multiplies four unsigned bytes of a lane by four signed ones and adds them up, at the rate of one multiply-add of
// floats. Codes (or their levels) are the unsigned bytes as they are unpacked. The coefficient x,
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

inline constexpr std::size_t kLanes = 16;                // of a vector
inline constexpr std::size_t kBlockLanes = 32;           // tokens or channels that lie together in every layout
inline constexpr std::size_t kRunSteps = 32;             // steps whose coefficients are cut in digits together
inline constexpr std::size_t kRunBytes = 2 * kRunSteps;  // of their digits: high ones, then low ones
inline constexpr float kLargest = 32639.0F;              // 256 * 127 + 127
inline constexpr float kSmallest = 1e-30F;               // a largest coefficient below this is nothing

// Bytes from a tile to the next one, as in lane_products-inl.h.
KVARTET_VNNI_INLINE std::uintptr_t bytes_ahead(const void* tile, const void* next) {
  return next == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(next) - reinterpret_cast<std::uintptr_t>(tile);
}
KVARTET_VNNI_INLINE void prefetch_ahead(const void* p, std::uintptr_t ahead) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): another tile, another object
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + ahead), _MM_HINT_T1);
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

// The order of a run's digits: those of quad q, byte i belong to step Order::step(q, i) of the run.
struct PlainOrder {
  static constexpr int step(int quad, int byte) { return 4 * quad + byte; }
};

// Where the digits of a run lie among the bytes of its numbers: step s is number 8 * (s / 4 % 4) + 4 * (s / 16) + s % 4 of 16
// bits once vpackssdw has packed two vectors of 16 steps.
struct DigitPlaces {
  alignas(64) std::uint8_t of[kRunBytes];
};
template <class Order>
constexpr DigitPlaces digit_places() {
  DigitPlaces places{};
  for (int i = 0; i < static_cast<int>(kRunSteps); ++i) {
    const int step = Order::step(i / 4, i % 4);
    const int number = 8 * (step / 4 % 4) + 4 * (step / 16) + step % 4;
    places.of[i] = static_cast<std::uint8_t>(64 + 2 * number + 1);  // of the second vector: rounded up where low is negative
    places.of[static_cast<int>(kRunSteps) + i] = static_cast<std::uint8_t>(2 * number);
  }
  return places;
}
template <class Order>
alignas(64) inline constexpr DigitPlaces kDigitPlaces = digit_places<Order>();

// Cuts the 32 whole numbers of a run, within +-kLargest, in digits and adds pairs of them to `number_sum`.
KVARTET_VNNI_INLINE void store_digits(__m512i first, __m512i second, __m512i places, std::int8_t* digits, __m512i& number_sum) {
  const __m512i numbers = _mm512_packs_epi32(first, second);
  number_sum = _mm512_dpwssd_epi32(number_sum, numbers, _mm512_set1_epi16(1));
  const __m512i rounded = _mm512_add_epi16(numbers, _mm512_set1_epi16(128));
  _mm512_storeu_si512(digits, _mm512_permutex2var_epi8(numbers, places, rounded));
}

// The sums of the 32 lanes of a block.
template <int kQueries>
struct DigitSums {
  __m512i high[kQueries][2];
  __m512i low[kQueries][2];

  KVARTET_VNNI_INLINE void clear() {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) {
      high[k][0] = high[k][1] = low[k][0] = low[k][1] = _mm512_setzero_si512();
    }
  }
  // Whole numbers; they wrap on the way and are right in the end.
  KVARTET_VNNI_INLINE __m512i total(std::size_t k, int v) const {
    return _mm512_add_epi32(_mm512_slli_epi32(high[k][v], 8), low[k][v]);
  }
};

KVARTET_VNNI_INLINE __m512i four_digits(const std::int8_t* digits) {
  std::int32_t four = 0;
  std::memcpy(&four, digits, sizeof(four));
  return _mm512_set1_epi32(four);
}

// Quads kQuad to 7 of a run. codes.quad<kQuad, kVector>(words) has the codes of four steps in the bytes of each lane.
// digits: [kQueries][kRunBytes].
template <int kQuad, class Codes, int kQueries>
KVARTET_VNNI_INLINE void add_quads(const Codes& codes, const std::uint32_t* words, const std::int8_t* digits,
                                   DigitSums<kQueries>& sums) {
  const __m512i code0 = codes.template quad<kQuad, 0>(words);
  const __m512i code1 = codes.template quad<kQuad, 1>(words);
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kQueries; ++k) {
    const __m512i high = four_digits(digits + k * kRunBytes + 4 * kQuad);
    const __m512i low = four_digits(digits + k * kRunBytes + kRunSteps + 4 * kQuad);
    sums.high[k][0] = _mm512_dpbusd_epi32(sums.high[k][0], code0, high);
    sums.high[k][1] = _mm512_dpbusd_epi32(sums.high[k][1], code1, high);
    sums.low[k][0] = _mm512_dpbusd_epi32(sums.low[k][0], code0, low);
    sums.low[k][1] = _mm512_dpbusd_epi32(sums.low[k][1], code1, low);
  }
  if constexpr (kQuad < 7) add_quads<kQuad + 1>(codes, words, digits, sums);
}

// Lane i of the result is the reduction of vectors[i], the same for all i: four steps for all of them, not four for each.
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

// Of kCount vectors, from lane 0 on; v has 4, 8 or 16 vectors. The order within a sum does not depend on kCount.
template <class Reduction, int kCount>
KVARTET_VNNI_INLINE __m512 reduce_each(const __m512* v) {
  if constexpr (kCount > 8) return reduce_sixteen<Reduction>(v);
  if constexpr (kCount > 4 && kCount <= 8) {
    const __m512 a = reduce_eight<Reduction>(v);
    return Reduction::of(_mm512_shuffle_f32x4(a, a, 0x88), _mm512_shuffle_f32x4(a, a, 0xdd));
  }
  if constexpr (kCount <= 4) {
    const __m512 a = reduce_four<Reduction>(v);
    const __m512 b = Reduction::of(a, _mm512_shuffle_f32x4(a, a, 0xb1));
    return Reduction::of(b, _mm512_shuffle_f32x4(b, b, 0x4e));
  }
}

inline constexpr int kFoldGroups = 4;  // that are folded together: with four queries 16 sums

// x[query, i] = from[query, i] * scale[group, i] for i in the whole runs that hold [begin, end); outside 0, whatever the
// scales of rows that are not there yet.
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

  std::size_t first() const { return begin / kRunSteps * kRunSteps; }
  std::size_t runs() const { return (end + kRunSteps - 1) / kRunSteps - begin / kRunSteps; }
};

// Up to kFoldGroups groups, each on the grid of its largest coefficient.
template <int kQueries>
struct FoldedGroups {
  alignas(64) float step[kLanes];  // [group][kQueries]: what one is worth
  alignas(64) float inverse[kLanes];
  alignas(64) float offset[kLanes];             // sum of from * (zero + center * scale)
  alignas(64) std::int32_t number_sum[kLanes];  // of the whole numbers

  static KVARTET_VNNI_INLINE std::size_t at(std::size_t group, std::size_t k) { return group * kQueries + k; }
};

enum class Zeros : std::uint8_t { kNone, kAdd };
enum class Lanes : std::uint8_t { kAll, kSome };  // of every vector in question: are they within [begin, end)?

template <Lanes kWhich>
KVARTET_VNNI_INLINE __m512 only(__mmask16 wanted, __m512 v) {
  return kWhich == Lanes::kAll ? v : _mm512_maskz_mov_ps(wanted, v);
}
template <Lanes kWhich>
KVARTET_VNNI_INLINE __m512 load_only(__mmask16 wanted, const float* p) {
  return kWhich == Lanes::kAll ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(wanted, p);
}

template <Zeros kZeros, Lanes kWhich, int kGroups, int kQueries>
KVARTET_VNNI_INLINE void fold_some(const FoldSource& source, std::size_t groups, const DigitPlaces& digit_places,
                                   std::int8_t* digits, FoldedGroups<kQueries>& folded) {
  constexpr int kCount = kGroups * kQueries;
  const std::size_t first = source.first();
  const std::size_t count = source.runs() * kRunSteps;
  const float* const from = source.from - (source.begin - first);  // lanes before the first are masked
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
    for (std::size_t k = 0; k < kQueries; ++k) group_largest[k] = group_offset[k] = _mm512_setzero_ps();
    for (std::size_t i = 0; i < count; i += kLanes) {
      if (i % kRunSteps == 0) {
        prefetch_ahead(scales + i, source.ahead);
        if constexpr (kZeros == Zeros::kAdd) prefetch_ahead(zeros + i, source.ahead);
      }
      const __mmask16 wanted = kWhich == Lanes::kAll ? 0xffff : lanes_in(first + i, source.begin, source.end);
      const __m512 scale = only<kWhich>(wanted, load_f16(scales + i));
      __m512 zero = _mm512_setzero_ps();  // NOLINT(misc-const-correctness): set where there are zeros
      if constexpr (kZeros == Zeros::kAdd) {
        zero = _mm512_fmadd_ps(scale, _mm512_set1_ps(source.center), only<kWhich>(wanted, load_f16(zeros + i)));
      }
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kQueries; ++k) {
        const __m512 x = load_only<kWhich>(wanted, from + k * source.from_stride + i);
        group_largest[k] = _mm512_range_ps(group_largest[k], _mm512_mul_ps(x, scale), 0x0b);  // the larger magnitude
        if constexpr (kZeros == Zeros::kAdd) group_offset[k] = _mm512_fmadd_ps(x, zero, group_offset[k]);
      }
    }
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) {
      largest[folded.at(g, k)] = group_largest[k];
      if constexpr (kZeros == Zeros::kAdd) offset[folded.at(g, k)] = group_offset[k];
    }
  }
  const __m512 most = reduce_each<Largest, kCount>(largest);
  const __mmask16 something = _mm512_cmp_ps_mask(most, _mm512_set1_ps(kSmallest), _CMP_GE_OQ);
  _mm512_store_ps(folded.step, _mm512_mul_ps(most, _mm512_set1_ps(1.0F / kLargest)));
  _mm512_store_ps(folded.inverse, _mm512_maskz_div_ps(something, _mm512_set1_ps(kLargest), most));
  if constexpr (kZeros == Zeros::kAdd) _mm512_store_ps(folded.offset, reduce_each<Sum, kCount>(offset));

  const __m512i places = _mm512_load_si512(digit_places.of);
  __m512 number_sums[kLanes];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kLanes; ++i) number_sums[i] = _mm512_setzero_ps();
  for (std::size_t g = 0; g < groups; ++g) {
    const std::uint16_t* const scales = source.scales + g * source.group_stride + first;
    __m512i number_sum[kQueries];
    __m512 inverse[kQueries];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) {
      number_sum[k] = _mm512_setzero_si512();
      inverse[k] = _mm512_set1_ps(folded.inverse[folded.at(g, k)]);
    }
    for (std::size_t i = 0; i < count; i += kRunSteps) {
      const __mmask16 wanted[2] = {
          kWhich == Lanes::kAll ? __mmask16{0xffff} : lanes_in(first + i, source.begin, source.end),
          kWhich == Lanes::kAll ? __mmask16{0xffff} : lanes_in(first + i + kLanes, source.begin, source.end)};
      const __m512 scale[2] = {only<kWhich>(wanted[0], load_f16(scales + i)),
                               only<kWhich>(wanted[1], load_f16(scales + i + kLanes))};
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kQueries; ++k, digits += kRunBytes) {
        const float* const at = from + k * source.from_stride + i;
        const __m512 x0 = _mm512_mul_ps(load_only<kWhich>(wanted[0], at), scale[0]);
        const __m512 x1 = _mm512_mul_ps(load_only<kWhich>(wanted[1], at + kLanes), scale[1]);
        store_digits(_mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse[k])), _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse[k])), places,
                     digits, number_sum[k]);
      }
    }
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) number_sums[folded.at(g, k)] = _mm512_castsi512_ps(number_sum[k]);
  }
  _mm512_store_si512(folded.number_sum, _mm512_castps_si512(reduce_each<NumberSum, kCount>(number_sums)));
}

// digits: [groups][runs][kQueries][kRunBytes].
template <Zeros kZeros, int kQueries>
__attribute__((noinline)) void fold_groups(const FoldSource& source, std::size_t groups, const DigitPlaces& places,
                                           std::int8_t* digits, FoldedGroups<kQueries>& folded) {
  if (source.begin % kRunSteps != 0 || source.end % kRunSteps != 0) {
    fold_some<kZeros, Lanes::kSome, kFoldGroups>(source, groups, places, digits, folded);
  } else if (groups == 1) {
    fold_some<kZeros, Lanes::kAll, 1>(source, groups, places, digits, folded);
  } else if (groups == 2) {
    fold_some<kZeros, Lanes::kAll, 2>(source, groups, places, digits, folded);
  } else {
    fold_some<kZeros, Lanes::kAll, kFoldGroups>(source, groups, places, digits, folded);
  }
}

// Queries that no scale goes into: one grid for each, sums for every group of channels. digits: [runs][kQueries][kRunBytes].
template <int kQueries>
__attribute__((noinline)) void fold_queries(const float* q, std::size_t q_stride, std::size_t channels, std::size_t group,
                                            std::int8_t* digits, float* step, std::int32_t* number_sum, float* sum) {
  __m512 largest[4];
#pragma GCC unroll 4
  for (std::size_t k = 0; k < 4; ++k) {
    largest[k] = _mm512_setzero_ps();
    for (std::size_t c = 0; k < kQueries && c < channels; c += kLanes) {
      largest[k] = _mm512_range_ps(largest[k], _mm512_loadu_ps(q + k * q_stride + c), 0x0b);
    }
  }
  alignas(64) float inverses[kLanes];
  alignas(64) float steps[kLanes];
  const __m512 most = reduce_each<Largest, kQueries>(largest);
  const __mmask16 something = _mm512_cmp_ps_mask(most, _mm512_set1_ps(kSmallest), _CMP_GE_OQ);
  _mm512_store_ps(steps, _mm512_mul_ps(most, _mm512_set1_ps(1.0F / kLargest)));
  _mm512_store_ps(inverses, _mm512_maskz_div_ps(something, _mm512_set1_ps(kLargest), most));
  const __m512i places = _mm512_load_si512(kDigitPlaces<PlainOrder>.of);
  std::memcpy(step, steps, kQueries * sizeof(float));
  for (std::size_t c = 0; c < channels; number_sum += kQueries, sum += kQueries) {
    __m512 number_sums[4];
    __m512 sums[4];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < 4; ++k) number_sums[k] = sums[k] = _mm512_setzero_ps();
    for (const std::size_t end = c + group; c < end; c += kRunSteps) {
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kQueries; ++k, digits += kRunBytes) {
        const __m512 x0 = _mm512_loadu_ps(q + k * q_stride + c);
        const __m512 x1 = _mm512_loadu_ps(q + k * q_stride + c + kLanes);
        const __m512 inverse = _mm512_set1_ps(inverses[k]);
        __m512i number_sum_k = _mm512_castps_si512(number_sums[k]);
        store_digits(_mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse)), _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse)), places,
                     digits, number_sum_k);
        number_sums[k] = _mm512_castsi512_ps(number_sum_k);
        sums[k] = _mm512_add_ps(sums[k], _mm512_add_ps(x0, x1));
      }
    }
    alignas(64) std::int32_t of_numbers[kLanes];
    alignas(64) float of_queries[kLanes];
    _mm512_store_si512(of_numbers, _mm512_castps_si512(reduce_each<NumberSum, kQueries>(number_sums)));
    _mm512_store_ps(of_queries, reduce_each<Sum, kQueries>(sums));
    std::memcpy(number_sum, of_numbers, kQueries * sizeof(std::int32_t));
    std::memcpy(sum, of_queries, kQueries * sizeof(float));
    for (std::size_t k = 0; k < kQueries; ++k) step[k] += 0.0F * sum[k];  // a NaN or an Inf is not lost in whole numbers
  }
}

// Calls Kernel::run<n>(of, args, first query) with n of 1 to 4 until every query has had its turn.
template <class Kernel, class Of, class Args>
KVARTET_VNNI_INLINE void for_query_chunks(const Of& of, const Args& args) {
  std::size_t query = 0;
  std::size_t left = static_cast<std::size_t>(args.queries);
  while (left > 0) {
    const std::size_t take = left == 5 || left == 6 ? 3 : (left < 4 ? left : 4);
    if (take == 4) Kernel::template run<4>(of, args, query);
    if (take == 3) Kernel::template run<3>(of, args, query);
    if (take == 2) Kernel::template run<2>(of, args, query);
    if (take == 1) Kernel::template run<1>(of, args, query);
    query += take;
    left -= take;
  }
}

}  // namespace
}  // namespace kvartet::vnni
KVARTET_END_AVX512

#endif
