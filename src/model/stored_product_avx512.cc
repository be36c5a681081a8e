// Four outputs and four blocks at a time: a vector holds the codes of one output's four blocks, each 32-bit lane of the dot
// product a quarter of a block's sum; the quarters of four outputs are then added into one vector, lane 4 block + output, where
// scales apply. So conversions and scales cost a quarter of what they would output by output.
#include "model/stored_product.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet {
namespace {

constexpr std::size_t kOutputs = 4;   // of a tile
constexpr std::size_t kMaxRows = 4;   // of activations that share unpacked weights
constexpr std::size_t kAhead = 8192;  // bytes of weights that prefetching is in front; 1 to 16 KiB were tried
constexpr std::size_t kBlocks = Int8Blocks::kBlocks;

#define KV_INLINE inline __attribute__((always_inline))

struct Unpacked {
  __m512i low[kOutputs], high[kOutputs];  // unsigned codes of four blocks
  __m512 scale, minimum;                  // lane 4 block + output
};

KV_INLINE __mmask64 bytes_left(std::size_t valid, std::size_t from) {
  if (valid <= from) return 0;
  return valid - from >= 64 ? ~__mmask64{0} : (__mmask64{1} << (valid - from)) - 1;
}

// 64 bytes at `from`, zeros past the `valid` first bytes of `place`.
template <bool kWhole>
KV_INLINE __m512i load(const std::byte* place, std::size_t valid, std::size_t from) {
  if constexpr (kWhole) return _mm512_loadu_si512(place + from);
  return _mm512_maskz_loadu_epi8(bytes_left(valid, from), place + from);
}
template <bool kWhole>
KV_INLINE __m512i load16(const std::byte* place, std::size_t valid, std::size_t from) {
  if constexpr (kWhole) return _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(place + from)));
  return _mm512_maskz_loadu_epi8(bytes_left(valid, from) & 0xffff, place + from);
}

// Indices of 16-byte runs that begin at bytes a, b, c and d of two vectors.
#define KV_RUN(a)                                                                                                              \
  (char)((a) + 15), (char)((a) + 14), (char)((a) + 13), (char)((a) + 12), (char)((a) + 11), (char)((a) + 10), (char)((a) + 9), \
      (char)((a) + 8), (char)((a) + 7), (char)((a) + 6), (char)((a) + 5), (char)((a) + 4), (char)((a) + 3), (char)((a) + 2),   \
      (char)((a) + 1), (char)(a)
#define KV_RUNS(a, b, c, d) _mm512_set_epi8(KV_RUN(d), KV_RUN(c), KV_RUN(b), KV_RUN(a))

// Picks 16-bit numbers of four blocks (word `a` ... `d` of each vector) for two outputs: lanes 4 block + 0 and + 1 (`first`), or
// + 2 and + 3; a second set in the upper half.
#define KV_PAIR(a, b) 0, 0, (short)((b) + 32), (short)(b), 0, 0, (short)((a) + 32), (short)(a)
#define KV_FIRST(a, b, c, d, e, f, g, h) _mm512_set_epi16(KV_PAIR(g, h), KV_PAIR(e, f), KV_PAIR(c, d), KV_PAIR(a, b))
#define KV_LAST_PAIR(a, b) (short)((b) + 32), (short)(b), 0, 0, (short)((a) + 32), (short)(a), 0, 0
#define KV_LAST(a, b, c, d, e, f, g, h) \
  _mm512_set_epi16(KV_LAST_PAIR(g, h), KV_LAST_PAIR(e, f), KV_LAST_PAIR(c, d), KV_LAST_PAIR(a, b))

KV_INLINE __m512i of_four(__m512i a, __m512i b, __m512i c, __m512i d, __m512i first, __m512i last) {
  return _mm512_mask_blend_epi16(0xccccccccU, _mm512_permutex2var_epi16(a, first, b), _mm512_permutex2var_epi16(c, last, d));
}

KV_INLINE void split_codes(__m512i packed, __m512i* low, __m512i* high) {
  const __m512i mask = _mm512_set1_epi8(15);
  *low = _mm512_and_si512(packed, mask);
  *high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask);
}

struct Q4_1 {
  static constexpr std::size_t kBlockBytes = 20;
  template <bool kWhole>
  static KV_INLINE void unpack(const std::byte* const* place, std::size_t valid, Unpacked* to) {
    const __m512i codes = KV_RUNS(4, 24, 44, 64);
    __m512i front[kOutputs];
    for (std::size_t r = 0; r < kOutputs; ++r) {
      front[r] = load<kWhole>(place[r], valid, 0);
      const __m512i packed = _mm512_permutex2var_epi8(front[r], codes, load16<kWhole>(place[r], valid, 64));
      split_codes(packed, &to->low[r], &to->high[r]);
    }
    const __m512i both = of_four(front[0], front[1], front[2], front[3], KV_FIRST(0, 10, 20, 30, 1, 11, 21, 31),
                                 KV_LAST(0, 10, 20, 30, 1, 11, 21, 31));
    to->scale = _mm512_cvtph_ps(_mm512_castsi512_si256(both));
    to->minimum = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(both, 1));
  }
};

struct Q4_0 {
  static constexpr std::size_t kBlockBytes = 18;
  template <bool kWhole>
  static KV_INLINE void unpack(const std::byte* const* place, std::size_t valid, Unpacked* to) {
    const __m512i codes = KV_RUNS(2, 20, 38, 48 + 64);  // the back vector begins at byte 8
    __m512i front[kOutputs];
    for (std::size_t r = 0; r < kOutputs; ++r) {
      front[r] = load<kWhole>(place[r], valid, 0);
      const __m512i packed = _mm512_permutex2var_epi8(front[r], codes, load<kWhole>(place[r], valid, 8));
      split_codes(packed, &to->low[r], &to->high[r]);
    }
    const __m512i scales =
        of_four(front[0], front[1], front[2], front[3], KV_FIRST(0, 9, 18, 27, 0, 0, 0, 0), KV_LAST(0, 9, 18, 27, 0, 0, 0, 0));
    to->scale = _mm512_cvtph_ps(_mm512_castsi512_si256(scales));
    to->minimum = _mm512_mul_ps(to->scale, _mm512_set1_ps(-8));
  }
};

struct Q8_0 {
  static constexpr std::size_t kBlockBytes = 34;
  template <bool kWhole>
  static KV_INLINE void unpack(const std::byte* const* place, std::size_t valid, Unpacked* to) {
    const __m512i low = KV_RUNS(2, 36, 6 + 64, 40 + 64);    // of bytes 0.. and 64..
    const __m512i high = KV_RUNS(2, 36, 14 + 64, 48 + 64);  // of bytes 16.. and 72..
    const __m512i sign = _mm512_set1_epi8(-128);            // signed to unsigned: 128 more
    __m512i front[kOutputs];                                // the four scales as words 0, 1, 2, 3
    const __m512i words = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                           19 + 32, 2 + 32, 17, 0);
    for (std::size_t r = 0; r < kOutputs; ++r) {
      const __m512i a = load<kWhole>(place[r], valid, 0);
      const __m512i b = load<kWhole>(place[r], valid, 64);
      const __m512i c = load<kWhole>(place[r], valid, 16);
      const __m512i d = load<kWhole>(place[r], valid, 72);
      to->low[r] = _mm512_xor_si512(_mm512_permutex2var_epi8(a, low, b), sign);
      to->high[r] = _mm512_xor_si512(_mm512_permutex2var_epi8(c, high, d), sign);
      front[r] = _mm512_permutex2var_epi16(a, words, b);
    }
    const __m512i scales =
        of_four(front[0], front[1], front[2], front[3], KV_FIRST(0, 1, 2, 3, 0, 0, 0, 0), KV_LAST(0, 1, 2, 3, 0, 0, 0, 0));
    to->scale = _mm512_cvtph_ps(_mm512_castsi512_si256(scales));
    to->minimum = _mm512_mul_ps(to->scale, _mm512_set1_ps(-128));
  }
};

// Adds the four lanes of each block, of four outputs: lane 4 block + output.
KV_INLINE __m512i block_sums(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

KV_INLINE __m512 added(__m512 total, const Unpacked& w, const Int8Blocks& x) {
  const __m512i low = _mm512_load_si512(x.low);
  const __m512i high = _mm512_load_si512(x.high);
  __m512i dots[kOutputs];
  for (std::size_t r = 0; r < kOutputs; ++r) {
    dots[r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), w.low[r], low), w.high[r], high);
  }
  const __m512 sums = _mm512_cvtepi32_ps(block_sums(dots[0], dots[1], dots[2], dots[3]));
  total = _mm512_fmadd_ps(w.minimum, _mm512_load_ps(x.sum), total);
  return _mm512_fmadd_ps(_mm512_mul_ps(w.scale, _mm512_load_ps(x.scale)), sums, total);
}

KV_INLINE __m128 sum_of_quarters(__m512 v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Four outputs of kRows rows of activations.
template <class Format, std::size_t kRows>
KV_INLINE void multiply_tile(const StoredProduct& p, std::size_t first_row, const std::byte* const* outputs, float* to,
                             std::size_t count) {
  const std::size_t runs = int8_runs(p.inputs);
  const std::size_t row_bytes = p.inputs / kStoredBlock * Format::kBlockBytes;
  const std::size_t run_bytes = kBlocks * Format::kBlockBytes;
  const std::size_t whole = row_bytes / run_bytes;
  const Int8Blocks* const x = p.x + first_row * runs;
  const std::byte* place[kOutputs] = {outputs[0], outputs[1], outputs[2], outputs[3]};
  const std::byte* ahead = outputs[0] + kAhead;  // tiles lie one after another
  __m512 totals[kRows];
  for (std::size_t n = 0; n < kRows; ++n) totals[n] = _mm512_setzero_ps();
  Unpacked w;
  for (std::size_t run = 0; run < whole; ++run) {
    Format::template unpack<true>(place, 0, &w);
    for (std::size_t n = 0; n < kRows; ++n) totals[n] = added(totals[n], w, x[n * runs + run]);
    for (std::size_t line = 0; line < kOutputs * run_bytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead) + line, _MM_HINT_NTA);
    }
    ahead += kOutputs * run_bytes;
    for (std::size_t r = 0; r < kOutputs; ++r) place[r] += run_bytes;
  }
  if (whole < runs) {
    Format::template unpack<false>(place, row_bytes - whole * run_bytes, &w);
    for (std::size_t n = 0; n < kRows; ++n) totals[n] = added(totals[n], w, x[n * runs + whole]);
  }
  for (std::size_t n = 0; n < kRows; ++n) {
    float* const out = to + (first_row + n) * p.out_stride;
    _mm_mask_storeu_ps(out, static_cast<__mmask8>((1U << count) - 1), sum_of_quarters(totals[n]));
  }
}

template <class Format>
void multiply(const StoredProduct& p, std::size_t begin, std::size_t end) {
  const std::size_t row_bytes = p.inputs / kStoredBlock * Format::kBlockBytes;
  const char* const first = reinterpret_cast<const char*>(p.weights + begin * row_bytes);
  for (std::size_t line = 0; line < kAhead; line += 64) _mm_prefetch(first + line, _MM_HINT_NTA);
  for (std::size_t o = begin; o < end; o += kOutputs) {
    const std::size_t count = end - o < kOutputs ? end - o : kOutputs;
    const std::byte* outputs[kOutputs];
    for (std::size_t r = 0; r < kOutputs; ++r) outputs[r] = p.weights + (o + (r < count ? r : 0)) * row_bytes;
    float* const to = p.out + (o - begin);
    std::size_t row = 0;
    for (; row + kMaxRows <= p.rows; row += kMaxRows) multiply_tile<Format, kMaxRows>(p, row, outputs, to, count);
    switch (p.rows - row) {
      case 3: multiply_tile<Format, 3>(p, row, outputs, to, count); break;
      case 2: multiply_tile<Format, 2>(p, row, outputs, to, count); break;
      case 1: multiply_tile<Format, 1>(p, row, outputs, to, count); break;
      default: break;
    }
  }
}

// As numbers, a magnitude's bits order NaN above infinity above the rest, so that neither is lost.
KV_INLINE void quantize_block(const float* x, std::size_t block, Int8Blocks* to) {
  const __m512 front = _mm512_loadu_ps(x);
  const __m512 back = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i largest = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(front), magnitude),
                                           _mm512_and_si512(_mm512_castps_si512(back), magnitude));
  const float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(largest))));
  const float scale = most / 127.0F;
  const __m512 inverse = _mm512_set1_ps(most != 0.0F ? 127.0F / most : 0.0F);
  const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(front, inverse));
  const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(back, inverse));
  _mm_store_si128(reinterpret_cast<__m128i*>(to->low + 16 * block), _mm512_cvtsepi32_epi8(low));
  _mm_store_si128(reinterpret_cast<__m128i*>(to->high + 16 * block), _mm512_cvtsepi32_epi8(high));
  const float sum = scale * static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(low, high)));
  _mm_store_ps(to->scale + 4 * block, _mm_set1_ps(scale));
  _mm_store_ps(to->sum + 4 * block, _mm_set1_ps(sum));
}

KV_INLINE void clear_block(std::size_t block, Int8Blocks* to) {
  _mm_store_si128(reinterpret_cast<__m128i*>(to->low + 16 * block), _mm_setzero_si128());
  _mm_store_si128(reinterpret_cast<__m128i*>(to->high + 16 * block), _mm_setzero_si128());
  _mm_store_ps(to->scale + 4 * block, _mm_setzero_ps());
  _mm_store_ps(to->sum + 4 * block, _mm_setzero_ps());
}

void quantize(const float* x, const BlockRange& range, Int8Blocks* row) {
  const std::size_t end = range.first + range.count;
  for (std::size_t b = range.first; b < end; ++b, x += kStoredBlock) quantize_block(x, b % kBlocks, row + b / kBlocks);
  if (end < range.blocks) return;
  for (std::size_t b = end; b % kBlocks != 0; ++b) clear_block(b % kBlocks, row + b / kBlocks);
}

KV_INLINE __m512d squares(__m256 x, __m512d total) {
  const __m512d wide = _mm512_cvtps_pd(x);
  return _mm512_fmadd_pd(wide, wide, total);
}

void rms_norm(const float* x, const float* weight, std::size_t n, float epsilon, float* y) {
  __m512d total[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd()};
  for (std::size_t i = 0; i < n; i += 32) {
    for (std::size_t j = 0; j < 4; ++j) total[j] = squares(_mm256_loadu_ps(x + i + 8 * j), total[j]);
  }
  const double sum = _mm512_reduce_add_pd(_mm512_add_pd(_mm512_add_pd(total[0], total[1]), _mm512_add_pd(total[2], total[3])));
  const float mean = static_cast<float>(sum / static_cast<double>(n));
  const __m512 scale = _mm512_set1_ps(1.0F / __builtin_sqrtf(mean + epsilon));
  for (std::size_t i = 0; i < n; i += 16) {
    _mm512_storeu_ps(y + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), scale), _mm512_loadu_ps(weight + i)));
  }
}

// Below 1.5 units in the last place; infinity above, 0 below, NaN stays.
KV_INLINE __m512 exp_of(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0F)), 0);  // x / ln 2, nearest
  const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20F), _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1F), x));
  __m512 p = _mm512_set1_ps(1.0F / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
  return _mm512_scalef_ps(p, n);
}

// Both functions are x * sigmoid(t): t = x, or 2 sqrt(2/pi) (x + 0.044715 x^3).
void gated(const float* gate, const float* up, std::size_t n, GatedBy function, float* y) {
  const __m512 one = _mm512_set1_ps(1);
  for (std::size_t i = 0; i < n; i += 16) {
    const __m512 x = _mm512_loadu_ps(gate + i);
    __m512 t = x;
    if (function == GatedBy::kGelu) {
      const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715F), one);
      t = _mm512_mul_ps(_mm512_mul_ps(x, cubic), _mm512_set1_ps(1.5957691216F));
    }
    const __m512 below = exp_of(_mm512_max_ps(_mm512_set1_ps(-88), _mm512_sub_ps(_mm512_setzero_ps(), t)));  // NaN stays
    const __m512 act = _mm512_div_ps(x, _mm512_add_ps(one, below));
    _mm512_storeu_ps(y + i, _mm512_mul_ps(act, _mm512_loadu_ps(up + i)));
  }
}

constexpr StoredKernels kKernels = {quantize, rms_norm, gated, {multiply<Q4_0>, multiply<Q4_1>, multiply<Q8_0>}};

}  // namespace
}  // namespace kvartet
KVARTET_END_AVX512
#endif

namespace kvartet {

const StoredKernels* stored_kernels_avx512() {
#if KVARTET_HAS_AVX512
  if (uses_extension(SimdExtension::kVnni)) return &kKernels;
#endif
  return nullptr;
}

}  // namespace kvartet
