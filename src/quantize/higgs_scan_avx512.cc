// The scan of higgs_scan.cc with vectors of 64 bytes: two rows of a block's codes at once, so the two halves of a vector are sums
// of the same landmarks. Two blocks share the loads of the tables.

#include <cstddef>
#include <cstdint>

#include "quantize/higgs_scan_kernels.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet {
namespace {

constexpr std::size_t kRows = 32;     // landmarks of a block
constexpr std::size_t kAhead = 9216;  // bytes: the machine does not prefetch across the end of a page by itself

// The tables of four pairs of channels, 64 bytes, as shuffles want them: those of the first and the third pair for the low codes
// of both halves, those of the second and the fourth for the high codes.
struct WideTables {
  alignas(64) std::uint8_t entries[kMostScanDim / 8 * 128];
};

inline void widen_tables(const ScanTables& tables, std::size_t dim, WideTables* wide) {
  for (std::size_t i = 0; i < dim / 8; ++i) {
    const __m512i four = _mm512_load_si512(tables.entries + 64 * i);
    _mm512_store_si512(wide->entries + 128 * i, _mm512_shuffle_i32x4(four, four, 0xa0));
    _mm512_store_si512(wide->entries + 128 * i + 64, _mm512_shuffle_i32x4(four, four, 0xf5));
  }
}

// Sums of landmarks 0, 2, ... 30 of a block and of 1, 3, ... 31, as 32-bit numbers.
struct Sums {
  __m512i even;
  __m512i odd;
};

inline __m512i sum_of_halves(__m512i x) {
  return _mm512_cvtepu16_epi32(_mm256_add_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1)));
}

template <int kQueries, int kBlocks>
inline void sum_blocks(const std::byte* block, std::size_t block_bytes, std::size_t dim, const WideTables* wide,
                       Sums (*sums)[kQueries]) {
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  __m512i all[kBlocks][kQueries];  // odd bytes in the upper half, even ones in the lower, carries and all
  __m512i odd[kBlocks][kQueries];
  for (int b = 0; b < kBlocks; ++b)
    for (int q = 0; q < kQueries; ++q) all[b][q] = odd[b][q] = _mm512_setzero_si512();
  for (std::size_t i = 0; i < dim / 8; ++i) {
    __m512i low[kBlocks];
    __m512i high[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      const std::byte* const codes = block + static_cast<std::size_t>(b) * block_bytes + 64 * i;
      _mm_prefetch(reinterpret_cast<const char*>(codes) + kAhead, _MM_HINT_T1);
      const __m512i both = _mm512_loadu_si512(codes);
      low[b] = _mm512_and_si512(both, nibble);
      high[b] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    }
    for (int q = 0; q < kQueries; ++q) {
      const __m512i low_table = _mm512_load_si512(wide[q].entries + 128 * i);
      const __m512i high_table = _mm512_load_si512(wide[q].entries + 128 * i + 64);
      for (int b = 0; b < kBlocks; ++b) {
        const __m512i sum =
            _mm512_add_epi8(_mm512_shuffle_epi8(low_table, low[b]), _mm512_shuffle_epi8(high_table, high[b]));  // at most 254
        all[b][q] = _mm512_add_epi16(all[b][q], sum);
        odd[b][q] = _mm512_add_epi16(odd[b][q], _mm512_srli_epi16(sum, 8));
      }
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    for (int q = 0; q < kQueries; ++q) {
      sums[b][q].even = sum_of_halves(_mm512_sub_epi16(all[b][q], _mm512_slli_epi16(odd[b][q], 8)));
      sums[b][q].odd = sum_of_halves(odd[b][q]);
    }
  }
}

// Numbers of the even and the odd landmarks in order; only as many as there are.
inline void store_in_order(__m512 even, __m512 odd, std::size_t left, float* out) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const std::uint32_t there = left >= kRows ? 0xffffffffU : (1U << left) - 1;
  _mm512_mask_storeu_ps(out, static_cast<__mmask16>(there), _mm512_permutex2var_ps(even, first, odd));
  if (there >> 16 != 0) {
    _mm512_mask_storeu_ps(out + 16, static_cast<__mmask16>(there >> 16), _mm512_permutex2var_ps(even, second, odd));
  }
}

inline __m512 logits_of(__m512i sums, __m512 scales, const ScanTables& tables) {
  return _mm512_mul_ps(scales,
                       _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(tables.step), _mm512_set1_ps(tables.offset)));
}

// Where results go: one row per query, or the largest of all in the first.
struct Results {
  float* rows[4] = {};
  float factor = 1;
  bool largest = false;
};

template <int kQueries>
inline void write_block(const Sums* sums, const std::byte* scales, const ScanTables* const* tables, const Results& results,
                        std::size_t j, std::size_t left) {
  const __m512i both = _mm512_loadu_si512(scales);
  const __m512 even_scales = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  const __m512 odd_scales = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  __m512 even = logits_of(sums[0].even, even_scales, *tables[0]);
  __m512 odd = logits_of(sums[0].odd, odd_scales, *tables[0]);
  for (int q = 1; q < kQueries; ++q) {
    if (!results.largest) store_in_order(even, odd, left, results.rows[q - 1] + j);
    const __m512 next_even = logits_of(sums[q].even, even_scales, *tables[q]);
    const __m512 next_odd = logits_of(sums[q].odd, odd_scales, *tables[q]);
    even = results.largest ? _mm512_max_ps(even, next_even) : next_even;
    odd = results.largest ? _mm512_max_ps(odd, next_odd) : next_odd;
  }
  if (!results.largest) return store_in_order(even, odd, left, results.rows[kQueries - 1] + j);
  const __m512 factor = _mm512_set1_ps(results.factor);
  store_in_order(_mm512_mul_ps(even, factor), _mm512_mul_ps(odd, factor), left, results.rows[0] + j);
}

template <int kQueries>
inline void scan(const ScanBlocks& blocks, const ScanTables* const* tables, const Results& results) {
  WideTables wide[kQueries];
  for (int q = 0; q < kQueries; ++q) widen_tables(*tables[q], blocks.dim, &wide[q]);
  Sums sums[2][kQueries];
  std::size_t j = 0;
  for (; j + 2 * kRows <= blocks.count; j += 2 * kRows) {
    const std::byte* const block = blocks.data + j / kRows * blocks.bytes;
    sum_blocks<kQueries, 2>(block, blocks.bytes, blocks.dim, wide, sums);
    write_block<kQueries>(sums[0], block + kRows * blocks.dim / 4, tables, results, j, kRows);
    write_block<kQueries>(sums[1], block + blocks.bytes + kRows * blocks.dim / 4, tables, results, j + kRows, kRows);
  }
  for (; j < blocks.count; j += kRows) {
    const std::byte* const block = blocks.data + j / kRows * blocks.bytes;
    sum_blocks<kQueries, 1>(block, blocks.bytes, blocks.dim, wide, sums);
    write_block<kQueries>(sums[0], block + kRows * blocks.dim / 4, tables, results, j, blocks.count - j);
  }
}

void scan_queries(const ScanBlocks& blocks, const ScanTables* const* tables, int queries, const Results& results) {
  switch (queries) {
    case 1: return scan<1>(blocks, tables, results);
    case 2: return scan<2>(blocks, tables, results);
    case 3: return scan<3>(blocks, tables, results);
    default: return scan<4>(blocks, tables, results);
  }
}

void scan_all(const ScanBlocks& blocks, const ScanTables* const* tables, int queries, float* const* logits) {
  Results results;
  for (int q = 0; q < queries; ++q) results.rows[q] = logits[q];
  scan_queries(blocks, tables, queries, results);
}

void scan_largest(const ScanBlocks& blocks, const ScanTables* const* tables, int queries, float factor, float* best) {
  Results results;
  results.rows[0] = best;
  results.factor = factor;
  results.largest = true;
  scan_queries(blocks, tables, queries, results);
}

}  // namespace
}  // namespace kvartet
KVARTET_END_AVX512
#endif

namespace kvartet {

ScanKernels scan_kernels_avx512() {
#if KVARTET_HAS_AVX512
  if (uses_extension(SimdExtension::kVnni)) return {scan_all, scan_largest};
#endif
  return {};
}

}  // namespace kvartet
