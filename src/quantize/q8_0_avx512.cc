// Scores and weighted sums over q8_0's codes in integers (quantize/integer_products_avx512.h).
#include "quantize/integer_products_avx512.h"
#include "quantize/q8_0_kernels.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet::vnni {
namespace {

constexpr std::size_t kTileRows = 64;
constexpr std::size_t kBlock = 32;  // channels that share a scale
constexpr std::size_t kMaxHeadDim = 1024;
constexpr std::int32_t kBias = 128;
constexpr std::size_t kStepWords = kBlockLanes / 4;  // of a step of 32 lanes

// A step has one byte for each lane: four of them are brought together by one permutation of 128 bytes. Codes are signed, and
// with their topmost bit turned over they are unsigned and kBias too large.
struct ByteCodes {
  __m512i index[2];
  __m512i sign = _mm512_set1_epi8(-128);
  std::uintptr_t ahead;

  explicit KVARTET_VNNI_INLINE ByteCodes(std::uintptr_t bytes) : ahead(bytes) {
    const __m512i steps = _mm512_set1_epi32(0x60402000);  // of the four bytes of a lane
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x01010101));
    index[0] = _mm512_add_epi8(steps, first);
    index[1] = _mm512_add_epi8(index[0], _mm512_set1_epi8(16));
  }

  template <int kQuad, int kVector>
  KVARTET_VNNI_INLINE __m512i quad(const std::uint32_t* words) const {
    const __m512i a = _mm512_loadu_si512(words + kQuad * 4 * kStepWords);
    const __m512i b = _mm512_loadu_si512(words + (kQuad * 4 + 2) * kStepWords);
    prefetch_ahead(words + (kQuad * 4 + 2 * kVector) * kStepWords, ahead);
    return _mm512_xor_si512(_mm512_permutex2var_epi8(a, index[kVector], b), sign);
  }
};

// 32 steps of 32 lanes.
template <int kQueries>
KVARTET_VNNI_INLINE void add_steps(const ByteCodes& codes, const std::uint32_t* words, const std::int8_t* digits,
                                   DigitSums<kQueries>& sums) {
  add_quads<0>(codes, words, digits, sums);
}

const std::uint32_t* codes_of(const std::byte* tile) { return reinterpret_cast<const std::uint32_t*>(tile); }
const std::uint16_t* scales_of(const std::byte* tile, std::size_t head_dim) {
  return reinterpret_cast<const std::uint16_t*>(tile + kTileRows * head_dim);
}

// ---- keys

template <int kQueries>
struct FoldedQueries {
  alignas(64) std::int8_t digits[kQueries * kMaxHeadDim * 2];
  float step[kQueries];
  std::int32_t number_sum[kMaxHeadDim / kBlock][kQueries];
  float sum[kMaxHeadDim / kBlock][kQueries];
};

// The 32 tokens from `t`.
template <int kQueries>
__attribute__((noinline)) void score_block(std::size_t head_dim, const ScoreArgs& args, const FoldedQueries<kQueries>& folded,
                                           std::size_t t, float* logits) {
  const std::uintptr_t ahead = bytes_ahead(args.tile, args.next);
  const ByteCodes codes(ahead);
  const std::uint32_t* words = codes_of(args.tile) + t * head_dim / 4;
  const std::uint16_t* scales = scales_of(args.tile, head_dim) + t;
  const std::int8_t* digits = folded.digits;
  __m512 sum[kQueries][2];
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kQueries; ++k) sum[k][0] = sum[k][1] = _mm512_setzero_ps();
  for (std::size_t b = 0; b < head_dim / kBlock; ++b) {
    prefetch_ahead(scales, ahead);
    DigitSums<kQueries> sums;
    sums.clear();
    add_steps(codes, words, digits, sums);
    const __m512 scale[2] = {load_f16(scales), load_f16(scales + kLanes)};
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) {
      const __m512i too_much = _mm512_set1_epi32(kBias * folded.number_sum[b][k]);
      sum[k][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums.total(k, 0), too_much)), scale[0], sum[k][0]);
      sum[k][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums.total(k, 1), too_much)), scale[1], sum[k][1]);
    }
    words += kBlock * kStepWords;
    digits += kQueries * kRunBytes;
    scales += kTileRows;
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const __mmask16 wanted = lanes_in(t + v * kLanes, static_cast<std::size_t>(args.begin), static_cast<std::size_t>(args.end));
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) {
      _mm512_mask_storeu_ps(logits + k * args.logit_stride + v * kLanes, wanted,
                            _mm512_mul_ps(sum[k][v], _mm512_set1_ps(folded.step[k])));
    }
  }
}

struct ScoreBytes {
  template <int kQueries>
  __attribute__((noinline)) static void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    FoldedQueries<kQueries> folded;
    fold_queries<kQueries>(args.q + query * head_dim, head_dim, head_dim, kBlock, folded.digits, folded.step,
                           folded.number_sum[0], folded.sum[0]);
    float* const logits = args.logits + query * args.logit_stride;
    for (std::size_t t = begin / kBlockLanes * kBlockLanes; t < static_cast<std::size_t>(args.end); t += kBlockLanes) {
      // Before the first logit where the block begins before the first row: what lies there is masked.
      float* const to = t < begin ? logits - (begin - t) : logits + (t - begin);
      score_block<kQueries>(head_dim, args, folded, t, to);
    }
  }
};

// ---- values

// 32 channels; the block's first of what is folded.
template <int kQueries>
__attribute__((noinline)) void accumulate_block(const std::uint32_t* words, std::size_t runs, std::uintptr_t ahead,
                                                const std::int8_t* digits, const FoldedGroups<kQueries>& folded,
                                                std::size_t first, float* out, std::size_t out_stride) {
  const ByteCodes codes(ahead);
  DigitSums<kQueries> sums;
  sums.clear();
  for (std::size_t r = 0; r < runs; ++r, words += kRunSteps * kStepWords, digits += kQueries * kRunBytes) {
    add_steps(codes, words, digits, sums);
  }
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kQueries; ++k) {
    const __m512i too_much = _mm512_set1_epi32(kBias * folded.number_sum[first + k]);
    const __m512 step = _mm512_set1_ps(folded.step[first + k]);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* const to = out + k * out_stride + v * kLanes;
      const __m512i total = _mm512_sub_epi32(sums.total(k, v), too_much);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), step, _mm512_loadu_ps(to)));
    }
  }
}

struct AccumulateBytes {
  template <int kQueries>
  __attribute__((noinline)) static void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t groups = head_dim / kBlock;
    const std::uintptr_t ahead = bytes_ahead(args.tile, args.next);
    FoldSource source{args.weights + query * args.weight_stride,
                      args.weight_stride,
                      static_cast<std::size_t>(args.begin),
                      static_cast<std::size_t>(args.end),
                      nullptr,
                      nullptr,
                      0,
                      kTileRows,
                      ahead};
    alignas(64) std::int8_t digits[kFoldGroups * kQueries * kTileRows * 2];
    FoldedGroups<kQueries> folded;
    for (std::size_t first = 0; first < groups; first += kFoldGroups) {
      const std::size_t count = groups - first < kFoldGroups ? groups - first : kFoldGroups;
      source.scales = source.zeros = scales_of(args.tile, head_dim) + first * kTileRows;
      fold_groups<Zeros::kNone>(source, count, kDigitPlaces<PlainOrder>, digits, folded);
      for (std::size_t g = 0; g < count; ++g) {
        const std::uint32_t* const words = codes_of(args.tile) + ((first + g) * kTileRows + source.first()) * kStepWords;
        accumulate_block<kQueries>(words, source.runs(), ahead, digits + g * source.runs() * kQueries * kRunBytes, folded,
                                   folded.at(g, 0), args.out + query * head_dim + (first + g) * kBlock, head_dim);
      }
    }
  }
};

void score_q8_0(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<ScoreBytes>(format, args); }
void accumulate_q8_0(const TileFormat& format, const AccumulateArgs& args) { for_query_chunks<AccumulateBytes>(format, args); }

}  // namespace
}  // namespace kvartet::vnni
KVARTET_END_AVX512
#endif

namespace kvartet {

Q8Kernels q8_0_kernels_avx512(int head_dim) {
#if KVARTET_HAS_AVX512
  if (uses_extension(SimdExtension::kVnni) && static_cast<std::size_t>(head_dim) <= vnni::kMaxHeadDim) {
    return {vnni::score_q8_0, vnni::accumulate_q8_0};
  }
#endif
  (void)head_dim;
  return {};
}

}  // namespace kvartet
