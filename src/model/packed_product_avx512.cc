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

// 32 inputs at a time, so that the pairs of a panel that are written lie close.
void pack(const float* rows, std::size_t inputs, std::size_t count, std::uint32_t* panel) {
  constexpr std::size_t kStep = 32;
  for (std::size_t i = 0; i < inputs; i += kStep) {
    std::uint32_t* const to = panel + i / 2 * kPanelOutputs;
    for (std::size_t o = 0; o < kPanelOutputs; ++o) {
      alignas(64) std::uint32_t both[kStep / 2] = {};
      if (o < count) {
        const float* const from = rows + o * inputs + i;
        _mm512_store_si512(both, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from)));
      }
      for (std::size_t j = 0; j < kStep / 2; ++j) to[j * kPanelOutputs + o] = both[j];
    }
  }
}

constexpr PackedKernels kKernels = {round_row, pack, multiply};

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
