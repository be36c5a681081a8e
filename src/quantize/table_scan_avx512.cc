// Table look-up by byte permutations: a table of 256 bytes is four vectors, so two permutations of 128 entries each and a choice
// by the code's highest bit look 64 codes up. Of entries that are wider than a byte the lower and the upper bytes are looked up
// apart.
#include <cstddef>
#include <cstdint>

#include "quantize/table_scan_kernels.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet {
namespace {

constexpr std::size_t kPlane = kTablePoints;  // bytes
// Of one table, and of one query.
constexpr std::size_t table_bytes(bool byte_entries) { return byte_entries ? kPlane : 2 * kPlane; }
constexpr std::size_t query_bytes(bool byte_entries) { return kGroupTables * table_bytes(byte_entries); }
constexpr std::size_t kRows = 64;             // of a block
constexpr std::size_t kTogether = 8 * kRows;  // landmarks that a query walks over before the next one does
constexpr std::size_t kAheadRows = kTableAheadBlocks * kRows;
constexpr std::size_t kLine = 64;

// Two vectors of 32 numbers of 16 bits each become 64 bytes in order.
inline __m512i bytes_of_words(__m512i first, __m512i second) {
  const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm512_permutexvar_epi64(in_order, _mm512_packus_epi16(first, second));
}

// Entries of 32 points as numbers of 16 bits.
template <int kP>
inline __m512i entries_of(const GridLanes& grid, const float* scaled, float bias, std::size_t point) {
  __m512 low = _mm512_set1_ps(bias);
  __m512 high = low;
  for (int k = 0; k < kP; ++k) {
    const float* const points = grid.points + static_cast<std::size_t>(k) * grid.padded + point;
    const __m512 q = _mm512_set1_ps(scaled[k]);
    low = _mm512_fmadd_ps(q, _mm512_loadu_ps(points), low);
    high = _mm512_fmadd_ps(q, _mm512_loadu_ps(points + 16), high);
  }
  const __m256i first = _mm512_cvtusepi32_epi16(_mm512_cvttps_epi32(low));
  const __m256i second = _mm512_cvtusepi32_epi16(_mm512_cvttps_epi32(high));
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

inline std::uint8_t* planes_of(ScanTableGroup* group, std::size_t query, std::size_t table, bool byte_entries) {
  auto* const entries = reinterpret_cast<std::uint8_t*>(group->entries);
  return entries + query * query_bytes(byte_entries) + table * table_bytes(byte_entries);
}

template <int kP>
void fill_words(const GridLanes& grid, const float* scaled, const float* bias, std::size_t table, ScanTableGroup* group) {
  const __m512i lower = _mm512_set1_epi16(0xff);
  for (std::size_t h = 0; h < group->queries; ++h) {
    std::uint8_t* const planes = planes_of(group, h, table, false);
    for (std::size_t j = 0; j < kTablePoints; j += kRows) {
      const __m512i first = entries_of<kP>(grid, scaled + h * kP, bias[h], j);
      const __m512i second = entries_of<kP>(grid, scaled + h * kP, bias[h], j + 32);
      _mm512_store_si512(planes + j, bytes_of_words(_mm512_and_si512(first, lower), _mm512_and_si512(second, lower)));
      _mm512_store_si512(planes + kPlane + j, bytes_of_words(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8)));
    }
  }
}

template <int kP>
void fill_bytes(const GridLanes& grid, const float* scaled, const float* bias, std::size_t table, ScanTableGroup* group) {
  for (std::size_t h = 0; h < group->queries; ++h) {
    std::uint8_t* const plane = planes_of(group, h, table, true);
    __m512 q[kP];
    for (std::size_t k = 0; k < kP; ++k) q[k] = _mm512_set1_ps(scaled[h * kP + k]);
    for (std::size_t j = 0; j < kTablePoints; j += 16) {
      __m512 entry = _mm512_set1_ps(bias[h]);
      for (std::size_t k = 0; k < kP; ++k)
        entry = _mm512_fmadd_ps(q[k], _mm512_loadu_ps(grid.points + k * grid.padded + j), entry);
      _mm_store_si128(reinterpret_cast<__m128i*>(plane + j), _mm512_cvtusepi32_epi8(_mm512_cvttps_epi32(entry)));
    }
  }
}

template <int kP>
void fill_table(const GridLanes& grid, const float* scaled, const float* bias, std::size_t table, ScanTableGroup* group) {
  if constexpr (has_byte_entries(kP)) {
    fill_bytes<kP>(grid, scaled, bias, table, group);
  } else {
    fill_words<kP>(grid, scaled, bias, table, group);
  }
}

void fill(const GridLanes& grid, int p, const float* scaled, const float* bias, std::size_t table, ScanTableGroup* group) {
  switch (p) {
    case 1: return fill_table<1>(grid, scaled, bias, table, group);
    case 2: return fill_table<2>(grid, scaled, bias, table, group);
    case 4: return fill_table<4>(grid, scaled, bias, table, group);
    case 8: return fill_table<8>(grid, scaled, bias, table, group);
    default: return fill_table<16>(grid, scaled, bias, table, group);
  }
}

// logits[i .. i + 16) of a block, as far as there are any.
inline void write_logits(const TableWalk& walk, __m256i sums, const std::byte* scales, __m512 step, __m512 offset, float* logits,
                         std::size_t left) {
  if (left == 0) return;
  const auto there = static_cast<__mmask16>(left >= 16 ? 0xffffU : (1U << left) - 1);
  __m512 logit = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(sums)), step, offset);
  if (walk.is_first == 0) logit = _mm512_add_ps(logit, _mm512_maskz_loadu_ps(there, logits));
  if (walk.is_last != 0) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
    logit = _mm512_mul_ps(logit, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
  }
  _mm512_mask_storeu_ps(logits, there, logit);
}

// Sums of 32 landmarks: half 0 or 1 of a block that begins at landmark `first`.
inline void write_half(const TableWalk& walk, __m512i sums, std::size_t half, std::size_t first, __m512 step, __m512 offset,
                       float* logits) {
  const std::byte* const scales = walk.scales + first / kRows * walk.block_bytes;
  for (std::size_t quarter = 0; quarter < 2; ++quarter) {
    const std::size_t at = 32 * half + 16 * quarter;
    const std::size_t left = first + at < walk.count ? walk.count - first - at : 0;
    const __m256i here = quarter == 0 ? _mm512_castsi512_si256(sums) : _mm512_extracti64x4_epi64(sums, 1);
    write_logits(walk, here, scales + 2 * at, step, offset, logits + first + at, left);
  }
}

// What is fetched meanwhile: so many lines per table, from `next` on. Into the second cache: the nearest one's queue of misses is
// too short for what memory can bring.
struct Ahead {
  const std::byte* next = nullptr;
  std::size_t lines = 0;
};

// One query's logits of kBlocks blocks. Sums of the lower bytes are kept for all bytes with their carries and for the odd ones;
// of the upper bytes' sums only the lower eight bits matter, for the whole sum fits 16.
template <int kBlocks, bool kBytes>
inline void scan_blocks(const TableWalk& walk, const std::uint8_t* planes, std::size_t tables, std::size_t first, __m512 step,
                        __m512 offset, float* logits, Ahead ahead) {
  const std::byte* const codes = walk.codes + first / kRows * walk.block_bytes;
  __m512i all[kBlocks];
  __m512i odd[kBlocks];
  __m512i high[kBlocks];
  for (int b = 0; b < kBlocks; ++b) all[b] = odd[b] = high[b] = _mm512_setzero_si512();
  for (std::size_t s = 0; s < tables; ++s, planes += table_bytes(kBytes)) {
    __m512i table[8];
    for (std::size_t i = 0; i < (kBytes ? 4 : 8); ++i) table[i] = _mm512_load_si512(planes + 64 * i);
    for (std::size_t line = 0; line < ahead.lines; ++line, ahead.next += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(ahead.next), _MM_HINT_T1);
    for (int b = 0; b < kBlocks; ++b) {
      const __m512i code = _mm512_loadu_si512(codes + static_cast<std::size_t>(b) * walk.block_bytes + s * kRows);
      const __mmask64 upper = _mm512_movepi8_mask(code);
      const __m512i low = _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(table[0], code, table[1]),
                                                 _mm512_permutex2var_epi8(table[2], code, table[3]));
      if (!kBytes) {
        high[b] = _mm512_add_epi8(high[b], _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(table[4], code, table[5]),
                                                                  _mm512_permutex2var_epi8(table[6], code, table[7])));
      }
      all[b] = _mm512_add_epi16(all[b], low);
      odd[b] = _mm512_add_epi16(odd[b], _mm512_srli_epi16(low, 8));
    }
  }
  const __m512i upper_byte = _mm512_set1_epi16(static_cast<short>(0xff00));
  for (int b = 0; b < kBlocks; ++b) {
    const __m512i even_low = _mm512_sub_epi16(all[b], _mm512_slli_epi16(odd[b], 8));
    const __m512i even = _mm512_add_epi16(even_low, _mm512_slli_epi16(high[b], 8));
    const __m512i uneven = _mm512_add_epi16(odd[b], _mm512_and_si512(high[b], upper_byte));
    const std::size_t landmark = first + static_cast<std::size_t>(b) * kRows;
    write_half(walk, even, 0, landmark, step, offset, logits);
    write_half(walk, uneven, 1, landmark, step, offset, logits);
  }
}

// A query's tables are 4 or 8 KiB and stay in the nearest cache while it walks over some blocks; then the next query does. All of
// them together fetch the blocks that come later, evenly, so that memory is never idle.
template <bool kBytes>
void walk_all(const TableWalk& walk, const ScanTableGroup& group) {
  constexpr std::size_t kBlocks = 4;  // at once
  const std::size_t share = (kBlocks * walk.block_bytes / kLine + group.queries - 1) / group.queries;
  const std::size_t lines = (share + group.tables - 1) / group.tables;
  for (std::size_t begin = 0; begin < walk.count; begin += kTogether) {
    const std::size_t end = walk.count - begin < kTogether ? walk.count : begin + kTogether;
    for (std::size_t h = 0; h < group.queries; ++h) {
      const std::uint8_t* const planes = reinterpret_cast<const std::uint8_t*>(group.entries) + h * query_bytes(kBytes);
      const __m512 step = _mm512_set1_ps(group.step[h]);
      const __m512 offset = _mm512_set1_ps(group.offset[h]);
      float* const logits = walk.logits + h * walk.stride;
      std::size_t i = begin;
      for (; i + kBlocks * kRows <= end; i += kBlocks * kRows) {
        Ahead ahead;
        if (i + kAheadRows < walk.count)
          ahead = {walk.codes + (i + kAheadRows) / kRows * walk.block_bytes + h * share * kLine, lines};
        scan_blocks<kBlocks, kBytes>(walk, planes, group.tables, i, step, offset, logits, ahead);
      }
      for (; i < end; i += kRows) scan_blocks<1, kBytes>(walk, planes, group.tables, i, step, offset, logits, {});
    }
  }
}

void walk_blocks(const TableWalk& walk, const ScanTableGroup& group) {
  if (walk.byte_entries != 0) return walk_all<true>(walk, group);
  walk_all<false>(walk, group);
}

}  // namespace
}  // namespace kvartet
KVARTET_END_AVX512
#endif

namespace kvartet {

TableKernels table_kernels_avx512() {
#if KVARTET_HAS_AVX512
  if (uses_extension(SimdExtension::kVnni)) return {fill, walk_blocks};
#endif
  return {};
}

}  // namespace kvartet
