// Scores and weighted sums over planar codes of up to 5 bits in integers (quantize/integer_products_avx512.h).
#include <cmath>

#include "quantize/integer_products_avx512.h"
#include "quantize/planar_kernels.h"
#include "quantize/planar_rows.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet::vnni {
namespace {

constexpr std::size_t kRows = kPlanarRows;
constexpr std::size_t kMostGroups = kPlanarMaxChannels / 32;

// Levels by vpermb, which reads six bits of an index: a code may lie below other codes' bits, as long as the table repeats
// itself over them. So nothing is masked.
template <int kBits>
struct PlanarLevels {
  __m512i table;

  explicit KVARTET_VNNI_INLINE PlanarLevels(const CodeLevels& levels) {
    alignas(64) static constexpr Entries kCounting = counting();
    const __m512i codes = _mm512_and_si512(_mm512_load_si512(kCounting.of), _mm512_set1_epi8((1 << kBits) - 1));
    const __m512i bytes = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels.bytes)));
    table = levels.kind == LevelKind::kCode ? codes : _mm512_permutexvar_epi8(codes, bytes);
  }

  template <int kQuad, int kVector>
  KVARTET_VNNI_INLINE __m512i quad(const std::uint32_t* words) const {
    return _mm512_permutexvar_epi8(index<kQuad>(words + kVector * kLanes), table);
  }

 private:
  struct Entries {
    std::uint8_t of[64];
  };
  static constexpr Entries counting() {
    Entries entries{};
    for (int i = 0; i < 64; ++i) entries.of[i] = static_cast<std::uint8_t>(i);
    return entries;
  }
  static KVARTET_VNNI_INLINE __m512i load(const std::uint32_t* word, int i) {
    return _mm512_loadu_si512(word + static_cast<std::size_t>(i) * kPlanarLanes);
  }
  // The lowest kBits bits of every byte are a code (planar_rows.h).
  template <int kQuad>
  static KVARTET_VNNI_INLINE __m512i index(const std::uint32_t* word) {
    if constexpr (kBits == 4) return _mm512_srli_epi32(load(word, kQuad / 2), kQuad % 2 * 4);
    if constexpr (kBits == 2) return _mm512_srli_epi32(load(word, kQuad / 4), kQuad % 4 * 2);
    if constexpr (kBits == 1) return _mm512_srli_epi32(load(word, 0), kQuad);
    if constexpr (kBits == 3 || kBits == 5) {
      constexpr int kLow = kBits - 1;
      const __m512i low = kBits == 3 ? _mm512_srli_epi32(load(word, kQuad / 4), kQuad % 4 * 2)
                                     : _mm512_srli_epi32(load(word, kQuad / 2), kQuad % 2 * 4);
      const __m512i bits = load(word, kLow);
      const __m512i high = kQuad < kLow ? _mm512_slli_epi32(bits, kQuad < kLow ? kLow - kQuad : 0)
                                        : _mm512_srli_epi32(bits, kQuad < kLow ? 0 : kQuad - kLow);
      return _mm512_ternarylogic_epi32(_mm512_set1_epi8((1 << kLow) - 1), low, high, 0xca);  // mask ? low : high
    }
  }
};

// Where minima lie below all codes they are raised to the middle of them (FoldSource::center): by this many codes.
float center_of(const CodePart& part) {
  return part.has_minimum ? static_cast<float>(1 << (part.bits - 1)) - part.levels.bias : 0.0F;
}

// 32 steps of a block, and the same place of the tile that comes next.
template <int kBits, int kQueries>
KVARTET_VNNI_INLINE void add_word_group(const PlanarLevels<kBits>& levels, const std::uint32_t* words, std::uintptr_t ahead,
                                        const std::int8_t* digits, DigitSums<kQueries>& sums) {
#pragma GCC unroll 5
  for (std::size_t w = 0; w < kBits; ++w) {
    prefetch_ahead(words + w * kPlanarLanes, ahead);
    prefetch_ahead(words + w * kPlanarLanes + kLanes, ahead);
  }
  add_quads<0>(levels, words, digits, sums);
}

const std::uint32_t* codes_of(const CodePart& part, const std::byte* tile) {
  return reinterpret_cast<const std::uint32_t*>(tile + part.codes_at);
}
const std::uint16_t* scales_of(const CodePart& part, const std::byte* tile) {
  return reinterpret_cast<const std::uint16_t*>(tile + part.scales_at);
}
const std::uint16_t* minima_of(const CodePart& part, const std::byte* tile) {
  return reinterpret_cast<const std::uint16_t*>(tile + part.minima_at);
}

// ---- keys

template <int kQueries>
struct FoldedQueries {
  alignas(64) std::int8_t digits[kQueries * kPlanarMaxChannels * 2];
  float step[kQueries];
  std::int32_t number_sum[kMostGroups][kQueries];  // times the levels' bias: what is too much in a sum
  float sum[kMostGroups][kQueries];                // of the query's channels, for the minima
};

// logits[query, token] (first: becomes, else: grows by) what one part adds, for the 32 tokens from `t`.
template <int kBits, int kQueries>
__attribute__((noinline)) void score_block(const CodePart& part, const PlanarLevels<kBits>& levels, const ScoreArgs& args,
                                           const FoldedQueries<kQueries>& folded, std::size_t t, float* logits, bool first) {
  const std::uintptr_t ahead = bytes_ahead(args.tile, args.next);
  const std::size_t groups = static_cast<std::size_t>(part.groups());
  const std::size_t word_groups = static_cast<std::size_t>(part.group) / 32;
  const std::uint32_t* words = codes_of(part, args.tile) + t / kBlockLanes * static_cast<std::size_t>(part.channels * kBits);
  const std::uint16_t* scales = scales_of(part, args.tile) + t;
  const std::uint16_t* minima = minima_of(part, args.tile) + t;
  const std::int8_t* digits = folded.digits;
  const std::int32_t bias = static_cast<std::int32_t>(part.levels.bias + center_of(part));
  for (std::size_t g = 0; g < groups; ++g, scales += kRows, minima += kRows) {
    prefetch_ahead(scales, ahead);
    DigitSums<kQueries> sums;
    sums.clear();
    for (std::size_t w = 0; w < word_groups; ++w, words += kBits * kPlanarLanes, digits += kQueries * kRunBytes) {
      add_word_group(levels, words, ahead, digits, sums);
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m512 scale = load_f16(scales + v * kLanes);
      const __mmask16 wanted = lanes_in(t + v * kLanes, static_cast<std::size_t>(args.begin), static_cast<std::size_t>(args.end));
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kQueries; ++k) {
        float* const to = logits + k * args.logit_stride + v * kLanes;
        const __m512i total = _mm512_sub_epi32(sums.total(k, v), _mm512_set1_epi32(bias * folded.number_sum[g][k]));
        __m512 logit =
            _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(total), _mm512_set1_ps(folded.step[k] * part.levels.unit)), scale);
        if (part.has_minimum) {
          const __m512 minimum =
              _mm512_fmadd_ps(scale, _mm512_set1_ps(part.levels.unit * center_of(part)), load_f16(minima + v * kLanes));
          logit = _mm512_fmadd_ps(minimum, _mm512_set1_ps(folded.sum[g][k]), logit);
        }
        if (!first) logit = _mm512_add_ps(logit, _mm512_maskz_loadu_ps(wanted, to));
        _mm512_mask_storeu_ps(to, wanted, logit);
      }
    }
    first = false;
  }
}

template <int kBits, int kQueries>
__attribute__((noinline)) void score_part(const CodePart& part, const ScoreArgs& args, const float* q, std::size_t q_stride,
                                          float* logits, bool first) {
  FoldedQueries<kQueries> folded;
  fold_queries<kQueries>(q + part.first, q_stride, static_cast<std::size_t>(part.channels), static_cast<std::size_t>(part.group),
                         folded.digits, folded.step, folded.number_sum[0], folded.sum[0]);
  const PlanarLevels<kBits> levels(part.levels);
  const std::size_t begin = static_cast<std::size_t>(args.begin);
  for (std::size_t t = begin / kBlockLanes * kBlockLanes; t < static_cast<std::size_t>(args.end); t += kBlockLanes) {
    // Before the first logit where the block begins before the first row: what lies there is masked.
    float* const to = t < begin ? logits - (begin - t) : logits + (t - begin);
    score_block<kBits, kQueries>(part, levels, args, folded, t, to, first);
  }
}

struct ScorePlanar {
  template <int kQueries>
  static void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const std::size_t stride = static_cast<std::size_t>(format.planar->inputs);
    const float* const q = args.q + query * stride;
    float* const logits = args.logits + query * args.logit_stride;
    for (int p = 0; p < format.planar->part_count; ++p) {
      const CodePart& part = format.planar->parts[p];
      switch (part.bits) {
        case 1: score_part<1, kQueries>(part, args, q, stride, logits, p == 0); break;
        case 2: score_part<2, kQueries>(part, args, q, stride, logits, p == 0); break;
        case 3: score_part<3, kQueries>(part, args, q, stride, logits, p == 0); break;
        case 4: score_part<4, kQueries>(part, args, q, stride, logits, p == 0); break;
        default: score_part<5, kQueries>(part, args, q, stride, logits, p == 0); break;
      }
    }
  }
};

// ---- values

// out[query, channel] += weighted codes, for 32 channels; the group's first of what is folded.
template <int kBits, int kQueries>
__attribute__((noinline)) void accumulate_block(const CodePart& part, const PlanarLevels<kBits>& levels,
                                                const std::uint32_t* words, std::size_t word_groups, std::uintptr_t ahead,
                                                const std::int8_t* digits, const FoldedGroups<kQueries>& folded,
                                                std::size_t first, float* out, std::size_t out_stride) {
  DigitSums<kQueries> sums;
  sums.clear();
  for (std::size_t w = 0; w < word_groups; ++w, words += kBits * kPlanarLanes, digits += kQueries * kRunBytes) {
    add_word_group(levels, words, ahead, digits, sums);
  }
  const std::int32_t bias = static_cast<std::int32_t>(part.levels.bias + center_of(part));
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kQueries; ++k) {
    const __m512i too_much = _mm512_set1_epi32(bias * folded.number_sum[first + k]);
    const __m512 unit = _mm512_set1_ps(folded.step[first + k] * part.levels.unit);
    const __m512 offset = _mm512_set1_ps(part.has_minimum ? folded.offset[first + k] : 0.0F);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* const to = out + k * out_stride + v * kLanes;
      const __m512i total = _mm512_sub_epi32(sums.total(k, v), too_much);
      _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), unit, offset)));
    }
  }
}

template <int kBits, int kQueries>
__attribute__((noinline)) void accumulate_part(const CodePart& part, const AccumulateArgs& args, const float* weights, float* out,
                                               std::size_t out_stride) {
  const std::uintptr_t ahead = bytes_ahead(args.tile, args.next);
  const PlanarLevels<kBits> levels(part.levels);
  FoldSource source{weights,
                    args.weight_stride,
                    static_cast<std::size_t>(args.begin),
                    static_cast<std::size_t>(args.end),
                    nullptr,
                    nullptr,
                    part.levels.unit * center_of(part),
                    kRows,
                    ahead};
  const std::size_t group = static_cast<std::size_t>(part.group);
  const std::size_t groups = static_cast<std::size_t>(part.groups());
  const std::size_t group_bytes = source.runs() * kQueries * kRunBytes;
  alignas(64) std::int8_t digits[kFoldGroups * kQueries * kRows * 2];
  FoldedGroups<kQueries> folded;
  for (std::size_t first = 0; first < groups; first += kFoldGroups) {
    const std::size_t count = groups - first < kFoldGroups ? groups - first : kFoldGroups;
    source.scales = scales_of(part, args.tile) + first * kRows;
    source.zeros = minima_of(part, args.tile) + first * kRows;
    if (part.has_minimum) {
      fold_groups<Zeros::kAdd>(source, count, kDigitPlaces<PlainOrder>, digits, folded);
    } else {
      fold_groups<Zeros::kNone>(source, count, kDigitPlaces<PlainOrder>, digits, folded);
    }
    for (std::size_t c = first * group; c < (first + count) * group; c += kBlockLanes) {
      const std::size_t g = c / group - first;
      const std::uint32_t* const words =
          codes_of(part, args.tile) + (c / kBlockLanes * (kRows / 32) + source.first() / 32) * kBits * kPlanarLanes;
      accumulate_block<kBits, kQueries>(part, levels, words, source.runs(), ahead, digits + g * group_bytes, folded,
                                        folded.at(g, 0), out + static_cast<std::size_t>(part.first) + c, out_stride);
    }
  }
}

struct AccumulatePlanar {
  template <int kQueries>
  static void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const std::size_t stride = static_cast<std::size_t>(format.head_dim);
    const float* const weights = args.weights + query * args.weight_stride;
    float* const out = args.out + query * stride;
    for (int p = 0; p < format.planar->part_count; ++p) {
      const CodePart& part = format.planar->parts[p];
      switch (part.bits) {
        case 1: accumulate_part<1, kQueries>(part, args, weights, out, stride); break;
        case 2: accumulate_part<2, kQueries>(part, args, weights, out, stride); break;
        case 3: accumulate_part<3, kQueries>(part, args, weights, out, stride); break;
        case 4: accumulate_part<4, kQueries>(part, args, weights, out, stride); break;
        default: accumulate_part<5, kQueries>(part, args, weights, out, stride); break;
      }
    }
  }
};

void score_planar(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<ScorePlanar>(format, args); }
void accumulate_planar(const TileFormat& format, const AccumulateArgs& args) { for_query_chunks<AccumulatePlanar>(format, args); }

// Levels of a byte with a whole bias, and runs whose sums fit 32 bits.
bool suits(const CodePart& part) {
  return part.levels.kind != LevelKind::kWide && part.bits <= 5 && part.levels.bias == std::floor(part.levels.bias) &&
         part.group <= 512;
}

}  // namespace
}  // namespace kvartet::vnni
KVARTET_END_AVX512
#endif

namespace kvartet {

PlanarKernels planar_kernels_avx512(const PlanarRows& rows) {
#if KVARTET_HAS_AVX512
  bool all = uses_extension(SimdExtension::kVnni);
  for (int p = 0; p < rows.part_count; ++p) all = all && vnni::suits(rows.parts[p]);
  if (all) return {vnni::score_planar, vnni::accumulate_planar};
#endif
  (void)rows;
  return {};
}

}  // namespace kvartet
