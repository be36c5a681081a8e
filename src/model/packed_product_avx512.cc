#include "model/packed_product.h"

#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_BF16
namespace kvartet {
namespace {

#define KV_INLINE inline __attribute__((always_inline))

constexpr std::size_t kRows = PackedKernels::kRows;
constexpr std::size_t kVectors = kPanelOutputs / 16;
// Inputs whose part of a panel (24 KiB) stays in the first-level cache while the rows pass by.
constexpr std::size_t kInputs = 192;

KV_INLINE __m512bh pairs(const void* place) { return (__m512bh)_mm512_loadu_si512(place); }

KV_INLINE __m512bh pair_to_all(const std::uint16_t* place) {
  return (__m512bh)_mm512_set1_epi32(*reinterpret_cast<const int __attribute__((may_alias, aligned(2)))*>(place));
}

// A tile of `Rows` rows: inputs [from, from + count) added to what is there, or begun.
template <std::size_t Rows>
KV_INLINE void tile(const PackedProduct& p, const std::uint32_t* panel, std::size_t from, std::size_t count,
                    const std::uint16_t* x, float* out, const __mmask16* masks) {
  __m512 sums[Rows][kVectors];
#pragma GCC unroll 6
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = from == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(masks[v], out + r * p.out_stride + 16 * v);
    }
  }
  const std::uint32_t* w = panel + from / 2 * kPanelOutputs;
  x += from;
  for (std::size_t i = 0; i < count; i += 2, w += kPanelOutputs) {
    const __m512bh weights[kVectors] = {pairs(w), pairs(w + 16), pairs(w + 32), pairs(w + 48)};
#pragma GCC unroll 6
    for (std::size_t r = 0; r < Rows; ++r) {
      const __m512bh both = pair_to_all(x + r * p.inputs + i);
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], weights[v], both);
    }
  }
#pragma GCC unroll 6
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) _mm512_mask_storeu_ps(out + r * p.out_stride + 16 * v, masks[v], sums[r][v]);
  }
}

void multiply(const PackedProduct& p, std::size_t panel, std::size_t begin, std::size_t end) {
  const std::uint32_t* const weights = p.panels + panel * kPanelOutputs * (p.inputs / 2);
  const std::size_t first = panel * kPanelOutputs;
  __mmask16 masks[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    const std::size_t o = first + 16 * v;
    masks[v] = static_cast<__mmask16>(p.outputs >= o + 16 ? 0xffff : p.outputs > o ? (1U << (p.outputs - o)) - 1 : 0);
  }
  for (std::size_t from = 0; from < p.inputs; from += kInputs) {
    const std::size_t count = p.inputs - from < kInputs ? p.inputs - from : kInputs;
    std::size_t row = begin;
    for (; row + kRows <= end; row += kRows) {
      tile<kRows>(p, weights, from, count, p.x + row * p.inputs, p.out + (row - begin) * p.out_stride, masks);
    }
    const std::uint16_t* const x = p.x + row * p.inputs;
    float* const out = p.out + (row - begin) * p.out_stride;
    switch (end - row) {
      case 5: tile<5>(p, weights, from, count, x, out, masks); break;
      case 4: tile<4>(p, weights, from, count, x, out, masks); break;
      case 3: tile<3>(p, weights, from, count, x, out, masks); break;
      case 2: tile<2>(p, weights, from, count, x, out, masks); break;
      case 1: tile<1>(p, weights, from, count, x, out, masks); break;
      default: break;
    }
  }
}

void round_row(const float* x, std::size_t n, std::uint16_t* to) {
  for (std::size_t i = 0; i < n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
  }
}

// v[row], lane column -> column[j], lane row: of 16 rows and columns, written 64 numbers apart.
KV_INLINE void store_transposed(const __m512i* v, std::uint32_t* to) {
  __m512i a[16];
  __m512i b[16];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 16; i += 4) {  // b[i + c]: of rows i to i + 3, columns c, 4 + c, 8 + c and 12 + c
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (std::size_t c = 0; c < 4; ++c) {
    const __m512i even[2] = {_mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88)};
    const __m512i odd[2] = {_mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd), _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd)};
    _mm512_storeu_si512(to + c * kPanelOutputs, _mm512_shuffle_i32x4(even[0], even[1], 0x88));
    _mm512_storeu_si512(to + (4 + c) * kPanelOutputs, _mm512_shuffle_i32x4(odd[0], odd[1], 0x88));
    _mm512_storeu_si512(to + (8 + c) * kPanelOutputs, _mm512_shuffle_i32x4(even[0], even[1], 0xdd));
    _mm512_storeu_si512(to + (12 + c) * kPanelOutputs, _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd));
  }
}

// 32 inputs of one output, from each source of weights: sixteen pairs.
struct Floats {
  const float* rows;
  std::size_t inputs;
  KV_INLINE __m512i block(std::size_t output, std::size_t b) const {
    const float* const from = rows + output * inputs + b * kStoredBlock;
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
  }
};

KV_INLINE __m512 half_to_all(const std::byte* place) {
  const int bits = *reinterpret_cast<const std::uint16_t __attribute__((may_alias, aligned(1)))*>(place);
  return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}
KV_INLINE __m128i bytes16(const std::byte* place) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(place)); }

// As ggml widens them: a product, then a sum.
template <StoredFormat format>
struct Stored {
  static constexpr std::size_t kBlockBytes = stored_block_bytes(format);
  const std::byte* rows;
  std::size_t inputs;
  KV_INLINE __m512i block(std::size_t output, std::size_t b) const {
    const std::byte* const from = rows + (output * (inputs / kStoredBlock) + b) * kBlockBytes;
    const __m512 scale = half_to_all(from);
    __m512 front;
    __m512 back;
    if constexpr (format == StoredFormat::kQ8_0) {
      front = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(from + 2))), scale);
      back = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(from + 18))), scale);
    } else {
      const __m128i codes = bytes16(from + kBlockBytes - 16);
      const __m512i low = _mm512_cvtepu8_epi32(_mm_and_si128(codes, _mm_set1_epi8(15)));
      const __m512i high = _mm512_cvtepu8_epi32(_mm_and_si128(_mm_srli_epi16(codes, 4), _mm_set1_epi8(15)));
      if constexpr (format == StoredFormat::kQ4_0) {
        const __m512i eight = _mm512_set1_epi32(8);
        front = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(low, eight)), scale);
        back = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(high, eight)), scale);
      } else {
        const __m512 minimum = half_to_all(from + 2);
        front = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(low), scale), minimum);
        back = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(high), scale), minimum);
      }
    }
    return (__m512i)_mm512_cvtne2ps_pbh(back, front);
  }
};

template <class Source>
KV_INLINE void pack_from(const Source& source, std::size_t count, std::uint32_t* panel) {
  for (std::size_t o = 0; o < kPanelOutputs; o += 16) {
    for (std::size_t b = 0; b < source.inputs / kStoredBlock; ++b) {
      __m512i rows[16];
      for (std::size_t r = 0; r < 16; ++r) rows[r] = o + r < count ? source.block(o + r, b) : _mm512_setzero_si512();
      store_transposed(rows, panel + b * (kStoredBlock / 2) * kPanelOutputs + o);
    }
  }
}

void pack(const float* rows, std::size_t inputs, std::size_t count, std::uint32_t* panel) {
  pack_from(Floats{rows, inputs}, count, panel);
}

void pack_stored(const std::byte* rows, StoredFormat format, std::size_t inputs, std::size_t count, std::uint32_t* panel) {
  switch (format) {
    case StoredFormat::kQ4_0: return pack_from(Stored<StoredFormat::kQ4_0>{rows, inputs}, count, panel);
    case StoredFormat::kQ4_1: return pack_from(Stored<StoredFormat::kQ4_1>{rows, inputs}, count, panel);
    case StoredFormat::kQ8_0: return pack_from(Stored<StoredFormat::kQ8_0>{rows, inputs}, count, panel);
  }
}

constexpr PackedKernels kKernels = {round_row, pack, pack_stored, multiply};

}  // namespace
}  // namespace kvartet
KVARTET_END_AVX512
#endif

namespace kvartet {

const PackedKernels* packed_kernels() {
#if KVARTET_HAS_AVX512
  if (uses_extension(SimdExtension::kBf16)) return &kKernels;
#endif
  return nullptr;
}

}  // namespace kvartet
