// Scores and weighted sums over KIVI's codes in integers (quantize/integer_products_avx512.h).
#include "quantize/integer_products_avx512.h"
#include "quantize/kivi_format.h"
#include "quantize/kivi_kernels.h"
#include "quantize/kivi_layout.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet::vnni {
namespace {

// Shifted and masked, a word gives the codes of four of its steps: not neighbours, but 8 / kBits apart. The digits of
// coefficients are put in that order (step). Codes of 3 bits are planar (planar_rows.h): neighbours.
template <int kBits>
struct KiviCodes {
  template <int kQuad, int kVector>
  KVARTET_VNNI_INLINE __m512i quad(const std::uint32_t* words) const {
    const std::uint32_t* const word = words + kVector * kLanes;
    if constexpr (kBits == 8) return load(word, kQuad);
    if constexpr (kBits == 4 || kBits == 2) {
      constexpr int kQuads = 8 / kBits;  // of a word
      return _mm512_and_si512(_mm512_srli_epi32(load(word, kQuad / kQuads), kQuad % kQuads * kBits),
                              _mm512_set1_epi8((1 << kBits) - 1));
    }
    if constexpr (kBits == 3) {
      const __m512i low = _mm512_srli_epi32(load(word, kQuad / 4), kQuad % 4 * 2);
      const __m512i bits = load(word, 2);
      const __m512i high =
          kQuad < 2 ? _mm512_slli_epi32(bits, kQuad < 2 ? 2 - kQuad : 0) : _mm512_srli_epi32(bits, kQuad < 2 ? 0 : kQuad - 2);
      const __m512i code = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), low, high, 0xca);  // mask ? low : high
      return _mm512_and_si512(code, _mm512_set1_epi8(7));
    }
  }

  static constexpr int step(int quad, int byte) {
    if (kBits == 4) return quad / 2 * 8 + quad % 2 + 2 * byte;
    if (kBits == 2) return quad / 4 * 16 + quad % 4 + 4 * byte;
    return 4 * quad + byte;
  }

 private:
  static KVARTET_VNNI_INLINE __m512i load(const std::uint32_t* word, int i) {
    return _mm512_loadu_si512(word + static_cast<std::size_t>(i) * kKiviLanes);
  }
};

// What codes lie around, and what a sum has too much of it.
template <int kBits>
constexpr std::int32_t kCenter = 1 << (kBits - 1);

// The sums of a block of 32 lanes over `word_groups` times 32 steps.
template <int kBits, int kQueries>
KVARTET_VNNI_INLINE void add_word_groups(const std::uint32_t* words, std::size_t word_groups, std::uintptr_t ahead,
                                         const std::int8_t* digits, DigitSums<kQueries>& sums) {
  sums.clear();
  for (std::size_t g = 0; g < word_groups; ++g, words += kBits * kKiviLanes, digits += kQueries * kRunBytes) {
#pragma GCC unroll 8
    for (std::size_t w = 0; w < kBits; ++w) {
      prefetch_ahead(words + w * kKiviLanes, ahead);
      prefetch_ahead(words + w * kKiviLanes + kLanes, ahead);
    }
    add_quads<0>(KiviCodes<kBits>(), words, digits, sums);
  }
}

// A sum over codes around their center, with its zero points; `first` is the group's first of what is folded.
template <int kBits, int kQueries>
KVARTET_VNNI_INLINE __m512 centered(const DigitSums<kQueries>& sums, std::size_t k, int v, const FoldedGroups<kQueries>& folded,
                                    std::size_t first) {
  const __m512i total = _mm512_sub_epi32(sums.total(k, v), _mm512_set1_epi32(kCenter<kBits> * folded.number_sum[first + k]));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), _mm512_set1_ps(folded.step[first + k]),
                         _mm512_set1_ps(folded.offset[first + k]));
}

// logit = sum over channels of (q * scale) * code  +  sum over channels of q * zero, for the 32 tokens from `t`.
template <int kBits, int kQueries>
__attribute__((noinline)) void score_block(const KiviLayout& layout, const ScoreArgs& args, std::size_t t,
                                           const std::int8_t* digits, const FoldedGroups<kQueries>& folded, std::size_t first,
                                           float* logits) {
  DigitSums<kQueries> sums;
  add_word_groups<kBits>(layout.words(args.tile, t / kKiviLanes), layout.head_dim / 32, bytes_ahead(args.tile, args.next), digits,
                         sums);
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const __mmask16 wanted = lanes_in(t + v * kLanes, static_cast<std::size_t>(args.begin), static_cast<std::size_t>(args.end));
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) {
      const __m512 logit = centered<kBits>(sums, k, v, folded, first);
      _mm512_mask_storeu_ps(logits + k * args.logit_stride + v * kLanes, wanted, logit);
    }
  }
}

template <int kBits>
struct ScoreKivi {
  template <int kQueries>
  __attribute__((noinline)) static void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const KiviLayout layout(format);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    const std::size_t first_group = begin / layout.group;
    const std::size_t groups = (end + layout.group - 1) / layout.group - first_group;
    const std::size_t group_bytes = layout.head_dim / kRunSteps * kQueries * kRunBytes;
    alignas(64) std::int8_t digits[kFoldGroups * kQueries * kKiviMaxHeadDim * 2];
    FoldedGroups<kQueries> folded;
    fold_groups<Zeros::kAdd>({args.q + query * layout.head_dim, layout.head_dim, 0, layout.head_dim,
                              layout.scales(args.tile, first_group), layout.zeros(args.tile, first_group),
                              static_cast<float>(kCenter<kBits>), layout.params_per_group, bytes_ahead(args.tile, args.next)},
                             groups, kDigitPlaces<KiviCodes<kBits>>, digits, folded);
    float* const logits = args.logits + query * args.logit_stride;
    for (std::size_t t = begin / kKiviLanes * kKiviLanes; t < end; t += kKiviLanes) {
      const std::size_t g = t / layout.group - first_group;
      // Before the first logit where the block begins before the first row: what lies there is masked.
      float* const to = t < begin ? logits - (begin - t) : logits + (t - begin);
      score_block<kBits, kQueries>(layout, args, t, digits + g * group_bytes, folded, folded.at(g, 0), to);
    }
  }
};

// out += sum over rows of (weight * scale) * code  +  sum over rows of weight * zero, for 32 channels.
template <int kBits, int kQueries>
__attribute__((noinline)) void accumulate_block(const std::uint32_t* words, std::size_t word_groups, std::uintptr_t ahead,
                                                const std::int8_t* digits, const FoldedGroups<kQueries>& folded,
                                                std::size_t first, float* out, std::size_t out_stride) {
  DigitSums<kQueries> sums;
  add_word_groups<kBits>(words, word_groups, ahead, digits, sums);
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kQueries; ++k) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* const to = out + k * out_stride + v * kLanes;
      const __m512 sum = centered<kBits>(sums, k, v, folded, first);
      _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum));
    }
  }
}

template <int kBits>
struct AccumulateKivi {
  template <int kQueries>
  __attribute__((noinline)) static void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const KiviLayout layout(format);
    const std::uintptr_t ahead = bytes_ahead(args.tile, args.next);
    FoldSource source{args.weights + query * args.weight_stride,
                      args.weight_stride,
                      static_cast<std::size_t>(args.begin),
                      static_cast<std::size_t>(args.end),
                      nullptr,
                      nullptr,
                      static_cast<float>(kCenter<kBits>),
                      layout.params_per_group,
                      ahead};
    const std::size_t group_bytes = source.runs() * kQueries * kRunBytes;
    const std::size_t groups = layout.head_dim / layout.group;
    alignas(64) std::int8_t digits[kFoldGroups * kQueries * kKiviRows * 2];
    FoldedGroups<kQueries> folded;
    for (std::size_t first = 0; first < groups; first += kFoldGroups) {
      const std::size_t count = groups - first < kFoldGroups ? groups - first : kFoldGroups;
      source.scales = layout.scales(args.tile, first);
      source.zeros = layout.zeros(args.tile, first);
      fold_groups<Zeros::kAdd>(source, count, kDigitPlaces<KiviCodes<kBits>>, digits, folded);
      for (std::size_t channel = first * layout.group; channel < (first + count) * layout.group; channel += kKiviLanes) {
        const std::size_t g = channel / layout.group - first;
        accumulate_block<kBits, kQueries>(
            layout.words(args.tile, channel / kKiviLanes) + source.first() * kBits / 32 * kKiviLanes, source.runs(), ahead,
            digits + g * group_bytes, folded, folded.at(g, 0), args.out + query * layout.head_dim + channel, layout.head_dim);
      }
    }
  }
};

template <int kBits>
void score_kivi(const TileFormat& format, const ScoreArgs& args) {
  for_query_chunks<ScoreKivi<kBits>>(format, args);
}
template <int kBits>
void accumulate_kivi(const TileFormat& format, const AccumulateArgs& args) {
  for_query_chunks<AccumulateKivi<kBits>>(format, args);
}

}  // namespace
}  // namespace kvartet::vnni
KVARTET_END_AVX512
#endif

namespace kvartet {

KiviKernels kivi_kernels_avx512(int bits, int head_dim) {
#if KVARTET_HAS_AVX512
  const bool fits = bits < 8 || head_dim <= 256;  // sums of products in 32 bits
  if (uses_extension(SimdExtension::kVnni) && fits) {
    switch (bits) {
      case 2: return {vnni::score_kivi<2>, vnni::accumulate_kivi<2>};
      case 3: return {vnni::score_kivi<3>, vnni::accumulate_kivi<3>};
      case 4: return {vnni::score_kivi<4>, vnni::accumulate_kivi<4>};
      default: return {vnni::score_kivi<8>, vnni::accumulate_kivi<8>};
    }
  }
#endif
  (void)bits;
  (void)head_dim;
  return {};
}

}  // namespace kvartet
