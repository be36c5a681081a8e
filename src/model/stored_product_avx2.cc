// As stored_product_avx512.cc, with two blocks in a vector: the dot products are of bytes to 16 bits, then to 32.
#include "model/stored_product.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_AVX2
namespace kvartet {
namespace {

constexpr std::size_t kOutputs = 4;  // of a tile
constexpr std::size_t kMaxRows = 4;  // of activations that share unpacked weights
constexpr std::size_t kBlocks = Int8Blocks::kBlocks;
constexpr std::size_t kAhead = 8192;

#define KV_INLINE inline __attribute__((always_inline))

struct Unpacked {
  __m256i low[kOutputs], high[kOutputs];  // codes of two blocks
  __m256 scale, minimum;                  // lane 4 block + output
};

KV_INLINE __m256i two_runs(const std::byte* first, const std::byte* second) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1);
}

KV_INLINE void split_codes(__m256i packed, __m256i* low, __m256i* high) {
  const __m256i mask = _mm256_set1_epi8(15);
  *low = _mm256_and_si256(packed, mask);
  *high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
}

// The 16-bit number in front of four outputs' blocks, as f32.
KV_INLINE int half_at(const std::byte* place) {
  return *reinterpret_cast<const std::uint16_t __attribute__((may_alias, aligned(1)))*>(place);
}
KV_INLINE __m128 halves_of(const std::byte* const* place, std::size_t offset) {
  const __m128i lower = _mm_insert_epi16(_mm_cvtsi32_si128(half_at(place[0] + offset)), half_at(place[1] + offset), 1);
  const __m128i four = _mm_insert_epi16(_mm_insert_epi16(lower, half_at(place[2] + offset), 2), half_at(place[3] + offset), 3);
  return _mm_cvtph_ps(four);
}
KV_INLINE __m256 halves(const std::byte* const* place, std::size_t first, std::size_t second) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(halves_of(place, first)), halves_of(place, second), 1);
}

KV_INLINE __m256i pairs_of_dots(__m256i codes, __m256i x) { return _mm256_maddubs_epi16(codes, x); }

// Where the second block of a pair lies: behind the first, or, past a row's end, where the first is. Its activations are zeros.
struct Q4_1 {
  static constexpr std::size_t kBlockBytes = 20;
  static KV_INLINE void unpack(const std::byte* const* place, std::size_t second, Unpacked* to) {
    for (std::size_t r = 0; r < kOutputs; ++r) {
      split_codes(two_runs(place[r] + 4, place[r] + second + 4), &to->low[r], &to->high[r]);
    }
    to->scale = halves(place, 0, second);
    to->minimum = halves(place, 2, second + 2);
  }
  static KV_INLINE __m256i dots(const Unpacked& w, std::size_t r, __m256i low, __m256i high) {
    const __m256i both = _mm256_add_epi16(pairs_of_dots(w.low[r], low), pairs_of_dots(w.high[r], high));
    return _mm256_madd_epi16(both, _mm256_set1_epi16(1));
  }
};

struct Q4_0 {
  static constexpr std::size_t kBlockBytes = 18;
  static KV_INLINE void unpack(const std::byte* const* place, std::size_t second, Unpacked* to) {
    for (std::size_t r = 0; r < kOutputs; ++r) {
      split_codes(two_runs(place[r] + 2, place[r] + second + 2), &to->low[r], &to->high[r]);
    }
    to->scale = halves(place, 0, second);
    to->minimum = _mm256_mul_ps(to->scale, _mm256_set1_ps(-8));
  }
  static KV_INLINE __m256i dots(const Unpacked& w, std::size_t r, __m256i low, __m256i high) {
    return Q4_1::dots(w, r, low, high);
  }
};

struct Q8_0 {
  static constexpr std::size_t kBlockBytes = 34;
  static KV_INLINE void unpack(const std::byte* const* place, std::size_t second, Unpacked* to) {
    for (std::size_t r = 0; r < kOutputs; ++r) {
      to->low[r] = two_runs(place[r] + 2, place[r] + second + 2);
      to->high[r] = two_runs(place[r] + 18, place[r] + second + 18);
    }
    to->scale = halves(place, 0, second);
    to->minimum = _mm256_setzero_ps();
  }
  // |w| times x with the sign of w: two products of bytes fit 16 bits, four do not.
  static KV_INLINE __m256i dots(const Unpacked& w, std::size_t r, __m256i low, __m256i high) {
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i first = pairs_of_dots(_mm256_abs_epi8(w.low[r]), _mm256_sign_epi8(low, w.low[r]));
    const __m256i second = pairs_of_dots(_mm256_abs_epi8(w.high[r]), _mm256_sign_epi8(high, w.high[r]));
    return _mm256_add_epi32(_mm256_madd_epi16(first, one), _mm256_madd_epi16(second, one));
  }
};

KV_INLINE __m256i block_sums(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

// `half`: which two of the run's four blocks.
template <class Format>
KV_INLINE __m256 added(__m256 total, const Unpacked& w, const Int8Blocks& x, std::size_t half) {
  const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.low + 32 * half));
  const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.high + 32 * half));
  const __m256 sums = _mm256_cvtepi32_ps(block_sums(Format::dots(w, 0, low, high), Format::dots(w, 1, low, high),
                                                    Format::dots(w, 2, low, high), Format::dots(w, 3, low, high)));
  total = _mm256_fmadd_ps(w.minimum, _mm256_load_ps(x.sum + 8 * half), total);
  return _mm256_fmadd_ps(_mm256_mul_ps(w.scale, _mm256_load_ps(x.scale + 8 * half)), sums, total);
}

template <class Format, std::size_t kRows>
KV_INLINE void multiply_tile(const StoredProduct& p, std::size_t first_row, const std::byte* const* outputs, float* to,
                             std::size_t count) {
  const std::size_t runs = int8_runs(p.inputs);
  const std::size_t blocks = p.inputs / kStoredBlock;
  const Int8Blocks* const x = p.x + first_row * runs;
  const std::byte* place[kOutputs] = {outputs[0], outputs[1], outputs[2], outputs[3]};
  const std::byte* ahead = outputs[0] + kAhead;
  __m256 totals[kRows];
  for (std::size_t n = 0; n < kRows; ++n) totals[n] = _mm256_setzero_ps();
  Unpacked w;
  for (std::size_t b = 0; b < blocks; b += 2) {
    Format::unpack(place, b + 1 < blocks ? Format::kBlockBytes : 0, &w);
    for (std::size_t n = 0; n < kRows; ++n) totals[n] = added<Format>(totals[n], w, x[n * runs + b / kBlocks], b / 2 % 2);
    for (std::size_t line = 0; line < 2 * kOutputs * Format::kBlockBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead) + line, _MM_HINT_NTA);
    }
    ahead += 2 * kOutputs * Format::kBlockBytes;
    for (std::size_t r = 0; r < kOutputs; ++r) place[r] += 2 * Format::kBlockBytes;
  }
  for (std::size_t n = 0; n < kRows; ++n) {
    alignas(16) float four[kOutputs];
    _mm_store_ps(four, _mm_add_ps(_mm256_castps256_ps128(totals[n]), _mm256_extractf128_ps(totals[n], 1)));
    float* const out = to + (first_row + n) * p.out_stride;
    for (std::size_t r = 0; r < count; ++r) out[r] = four[r];
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

template <class T>
KV_INLINE T largest_of(const T* values, std::size_t count) {
  T most = values[0];
  for (std::size_t i = 1; i < count; ++i) most = values[i] > most ? values[i] : most;
  return most;
}

// Sixteen values as bytes, and their sum.
KV_INLINE std::uint32_t codes_of(const float* x, __m256 inverse, std::int8_t* to) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  alignas(32) std::uint32_t sums[8];  // what is not finite became the smallest number: its sums wrap
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_add_epi32(a, b));
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void set_block(std::size_t block, float scale, float sum, Int8Blocks* to) {
  _mm_store_ps(to->scale + 4 * block, _mm_set1_ps(scale));
  _mm_store_ps(to->sum + 4 * block, _mm_set1_ps(sum));
}

// As numbers, a magnitude's bits order NaN above infinity above the rest, so that neither is lost.
void quantize_block(const float* x, std::size_t block, Int8Blocks* to) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (std::size_t i = 0; i < kStoredBlock; i += 8) {
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), magnitude));
  }
  alignas(32) int lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  const float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(largest_of(lanes, 8))));
  const float scale = most / 127.0F;
  const __m256 inverse = _mm256_set1_ps(most != 0.0F ? 127.0F / most : 0.0F);
  const std::uint32_t sum = codes_of(x, inverse, to->low + 16 * block) + codes_of(x + 16, inverse, to->high + 16 * block);
  set_block(block, scale, scale * static_cast<float>(static_cast<std::int32_t>(sum)), to);
}

void quantize(const float* x, const BlockRange& range, Int8Blocks* row) {
  const std::size_t end = range.first + range.count;
  for (std::size_t b = range.first; b < end; ++b, x += kStoredBlock) quantize_block(x, b % kBlocks, row + b / kBlocks);
  if (end < range.blocks) return;
  for (std::size_t b = end; b % kBlocks != 0; ++b) {
    Int8Blocks* const to = row + b / kBlocks;
    const std::size_t block = b % kBlocks;
    _mm_store_si128(reinterpret_cast<__m128i*>(to->low + 16 * block), _mm_setzero_si128());
    _mm_store_si128(reinterpret_cast<__m128i*>(to->high + 16 * block), _mm_setzero_si128());
    set_block(block, 0, 0, to);
  }
}

void rms_norm(const float* x, const float* weight, std::size_t n, float epsilon, float* y) {
  __m256d total[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  for (std::size_t i = 0; i < n; i += 16) {
    for (std::size_t j = 0; j < 4; ++j) {
      const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * j));
      total[j] = _mm256_fmadd_pd(wide, wide, total[j]);
    }
  }
  alignas(32) double sums[4];
  _mm256_store_pd(sums, _mm256_add_pd(_mm256_add_pd(total[0], total[1]), _mm256_add_pd(total[2], total[3])));
  const float mean = static_cast<float>(((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<double>(n));
  const __m256 scale = _mm256_set1_ps(1.0F / __builtin_sqrtf(mean + epsilon));
  for (std::size_t i = 0; i < n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale), _mm256_loadu_ps(weight + i)));
  }
}

// For x in [-88, 88]; NaN stays.
KV_INLINE __m256 exp_of(__m256 x) {
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0F)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20F), _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1F), x));
  __m256 p = _mm256_set1_ps(1.0F / 5040);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 720));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
}

// Both functions are x * sigmoid(t): t = x, or 2 sqrt(2/pi) (x + 0.044715 x^3).
void gated(const float* gate, const float* up, std::size_t n, GatedBy function, float* y) {
  const __m256 one = _mm256_set1_ps(1);
  for (std::size_t i = 0; i < n; i += 8) {
    const __m256 x = _mm256_loadu_ps(gate + i);
    __m256 t = x;
    if (function == GatedBy::kGelu) {
      const __m256 cubic = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(0.044715F), one);
      t = _mm256_mul_ps(_mm256_mul_ps(x, cubic), _mm256_set1_ps(1.5957691216F));
    }
    const __m256 limited =
        _mm256_min_ps(_mm256_set1_ps(88), _mm256_max_ps(_mm256_set1_ps(-87), _mm256_sub_ps(_mm256_setzero_ps(), t)));
    const __m256 act = _mm256_div_ps(x, _mm256_add_ps(one, exp_of(limited)));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(act, _mm256_loadu_ps(up + i)));
  }
}

constexpr StoredKernels kKernels = {quantize, rms_norm, gated, {multiply<Q4_0>, multiply<Q4_1>, multiply<Q8_0>}};

}  // namespace
}  // namespace kvartet
KVARTET_END_AVX512
#endif

namespace kvartet {

const StoredKernels* stored_kernels_avx2() {
#if KVARTET_HAS_AVX512
  if (uses_extension(SimdExtension::kAvx2)) return &kKernels;
#endif
  return nullptr;
}

}  // namespace kvartet
