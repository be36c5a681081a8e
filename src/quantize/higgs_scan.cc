#include "quantize/higgs_scan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/bfloat16.h"
#include "core/check.h"
#include "quantize/higgs_scan_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/higgs_scan.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kLandmarks = 32;

// Table entries of one query: those of a pair are shifted to begin at 0; one step for all pairs. points: [16][2].
void fill_tables(const float* HWY_RESTRICT points, const float* HWY_RESTRICT query, std::size_t pairs,
                 ScanTables* HWY_RESTRICT tables) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  using V = hn::Vec<decltype(d)>;
  alignas(64) float products[kMostScanDim / 2 * kScanPoints];
  float least[kMostScanDim / 2];
  float widest = 0;
  tables->offset = 0;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    V lowest = hn::Set(d, std::numeric_limits<float>::infinity());
    V highest = hn::Neg(lowest);
    for (std::size_t code = 0; code < kScanPoints; code += hn::Lanes(d)) {
      V x;
      V y;
      hn::LoadInterleaved2(d, points + 2 * code, x, y);
      const V product = hn::Add(hn::Mul(hn::Set(d, query[2 * pair]), x), hn::Mul(hn::Set(d, query[2 * pair + 1]), y));
      hn::Store(product, d, products + pair * kScanPoints + code);
      lowest = hn::Min(lowest, product);
      highest = hn::Max(highest, product);
    }
    least[pair] = hn::GetLane(hn::MinOfLanes(d, lowest));
    const float width = hn::GetLane(hn::MaxOfLanes(d, highest)) - least[pair];
    widest = width > widest ? width : widest;
    tables->offset += least[pair];
  }
  tables->step = widest / 127;
  constexpr float kLeastWidth = 1e-36F;  // below, 127 over it is no number; all such logits are one
  const V inverse = hn::Set(d, widest > kLeastWidth ? 127 / widest : 0.0F);
  const V half = hn::Set(d, 0.5F);
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const V from = hn::Set(d, least[pair]);
    for (std::size_t code = 0; code < kScanPoints; code += hn::Lanes(d)) {
      const V above = hn::Sub(hn::Load(d, products + pair * kScanPoints + code), from);
      const auto entry = hn::ConvertTo(di, hn::Add(hn::Mul(above, inverse), half));
      hn::StoreU(hn::DemoteTo(d8, entry), d8, tables->entries + pair * kScanPoints + code);
    }
  }
}

// sums[query][j] = the table entries of landmark j, added up, for kQueries queries: tables[query] are [pairs][16], entries at
// most 127, at most 256 pairs. The codes are taken apart once for all queries.
template <int kQueries>
HWY_INLINE void scan_block(const std::uint8_t* HWY_RESTRICT codes, const ScanTables* const* tables, std::size_t pairs,
                           std::uint16_t (*HWY_RESTRICT sums)[kLandmarks]) {
  const hn::CappedTag<std::uint8_t, 32> d;
  const hn::Repartition<std::uint16_t, decltype(d)> d16;
  using V16 = hn::Vec<decltype(d16)>;
  const auto nibble = hn::Set(d, 0x0f);
  for (std::size_t first = 0; first < kLandmarks; first += hn::Lanes(d)) {
    V16 all[kQueries];  // odd bytes in the upper half, even ones in the lower, carries and all
    V16 odd[kQueries];
    for (int q = 0; q < kQueries; ++q) all[q] = odd[q] = hn::Zero(d16);
    for (std::size_t p = 0; p < pairs; p += 2) {
      const auto both = hn::LoadU(d, codes + p / 2 * kLandmarks + first);
      const auto low_codes = hn::And(both, nibble);
      const auto high_codes = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, both))), nibble);
      for (int q = 0; q < kQueries; ++q) {
        const std::uint8_t* const entries = tables[q]->entries + p * kScanPoints;
        const auto low = hn::TableLookupBytes(hn::LoadDup128(d, entries), low_codes);
        const auto high = hn::TableLookupBytes(hn::LoadDup128(d, entries + kScanPoints), high_codes);
        const auto sum = hn::BitCast(d16, hn::Add(low, high));  // at most 254
        all[q] = hn::Add(all[q], sum);
        odd[q] = hn::Add(odd[q], hn::ShiftRight<8>(sum));
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      // The even sums are what is left when the odd ones leave, modulo 2^16, which no sum reaches.
      const auto even = hn::Sub(all[q], hn::ShiftLeft<8>(odd[q]));
      hn::StoreInterleaved2(even, odd[q], d16, sums[q] + first);
    }
  }
}

// Sums and scales (as bf16) of the block in which landmark j is the first.
template <int kQueries>
HWY_INLINE void sum_block(const ScanBlocks& blocks, std::size_t j, const ScanTables* const* tables,
                          std::uint16_t (*HWY_RESTRICT sums)[kLandmarks], std::uint16_t* HWY_RESTRICT scales) {
  const std::byte* const block = blocks.data + j / kLandmarks * blocks.bytes;
  scan_block<kQueries>(reinterpret_cast<const std::uint8_t*>(block), tables, blocks.dim / 2, sums);
  std::memcpy(scales, block + kLandmarks * blocks.dim / 4, kLandmarks * sizeof(*scales));
}

// A vector of scale_j * (step * sum_j + offset).
HWY_INLINE hn::Vec<hn::CappedTag<float, 8>> logits_of(const std::uint16_t* HWY_RESTRICT sums,
                                                      const std::uint16_t* HWY_RESTRICT scales, const ScanTables& table) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const hn::RebindToSigned<decltype(d)> di;
  const auto sum = hn::ConvertTo(d, hn::BitCast(di, hn::PromoteTo(du, hn::LoadU(d16, sums))));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, scales))));
  return hn::Mul(scale, hn::MulAdd(sum, hn::Set(d, table.step), hn::Set(d, table.offset)));
}

template <int kQueries>
HWY_INLINE void scan_queries(const ScanBlocks& blocks, const ScanTables* const* tables, float* const* logits) {
  const hn::CappedTag<float, 8> d;
  alignas(64) std::uint16_t sums[kQueries][kLandmarks];
  alignas(64) std::uint16_t scales[kLandmarks];
  alignas(64) float last[kLandmarks];
  for (std::size_t j = 0; j < blocks.count; j += kLandmarks) {
    sum_block<kQueries>(blocks, j, tables, sums, scales);
    const bool whole = j + kLandmarks <= blocks.count;
    for (int q = 0; q < kQueries; ++q) {
      float* const out = whole ? logits[q] + j : last;
      for (std::size_t i = 0; i < kLandmarks; i += hn::Lanes(d))
        hn::StoreU(logits_of(sums[q] + i, scales + i, *tables[q]), d, out + i);
      if (!whole) std::memcpy(logits[q] + j, last, (blocks.count - j) * sizeof(float));
    }
  }
}

void scan_all(const ScanBlocks& blocks, const ScanTables* const* tables, int queries, float* const* logits) {
  switch (queries) {
    case 1: return scan_queries<1>(blocks, tables, logits);
    case 2: return scan_queries<2>(blocks, tables, logits);
    case 3: return scan_queries<3>(blocks, tables, logits);
    default: return scan_queries<4>(blocks, tables, logits);
  }
}

// best[j] = factor * the largest over all queries of scale_j * (step * sum_j + offset)
template <int kQueries>
HWY_INLINE void scan_largest_of(const ScanBlocks& blocks, const ScanTables* const* tables, float factor,
                                float* HWY_RESTRICT best) {
  const hn::CappedTag<float, 8> d;
  alignas(64) std::uint16_t sums[kQueries][kLandmarks];
  alignas(64) std::uint16_t scales[kLandmarks];
  alignas(64) float last[kLandmarks];
  for (std::size_t j = 0; j < blocks.count; j += kLandmarks) {
    sum_block<kQueries>(blocks, j, tables, sums, scales);
    const bool whole = j + kLandmarks <= blocks.count;
    float* const out = whole ? best + j : last;
    for (std::size_t i = 0; i < kLandmarks; i += hn::Lanes(d)) {
      auto largest = logits_of(sums[0] + i, scales + i, *tables[0]);
      for (int q = 1; q < kQueries; ++q) largest = hn::Max(largest, logits_of(sums[q] + i, scales + i, *tables[q]));
      hn::StoreU(hn::Mul(largest, hn::Set(d, factor)), d, out + i);
    }
    if (!whole) std::memcpy(best + j, last, (blocks.count - j) * sizeof(float));
  }
}

void scan_largest(const ScanBlocks& blocks, const ScanTables* const* tables, int queries, float factor, float* best) {
  switch (queries) {
    case 1: return scan_largest_of<1>(blocks, tables, factor, best);
    case 2: return scan_largest_of<2>(blocks, tables, factor, best);
    case 3: return scan_largest_of<3>(blocks, tables, factor, best);
    default: return scan_largest_of<4>(blocks, tables, factor, best);
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(fill_tables);
HWY_EXPORT(scan_all);
HWY_EXPORT(scan_largest);

namespace {

ScanKernels scan_kernels() {
  const ScanKernels wide = scan_kernels_avx512();
  return wide.all != nullptr ? wide : ScanKernels{SIMD_CHOOSE(scan_all), SIMD_CHOOSE(scan_largest)};
}

// Tables of the queries that share the walk over the codes.
struct TableSet {
  ScanTables tables[kMostScanQueries];
  const ScanTables* at[kMostScanQueries] = {};

  void fill_for(const HiggsGrid& grid, MatView<const float> queries) {
    for (std::size_t q = 0; q < queries.rows; ++q) {
      SIMD_CHOOSE(fill_tables)(grid.point(std::uint8_t{0}), queries.row(q), queries.cols / 2, &tables[q]);
      at[q] = &tables[q];
    }
  }
};

ScanBlocks checked(const HiggsGrid& grid, const std::byte* blocks, std::size_t count, std::size_t dim) {
  KV_CHECK(grid.p() == 2 && grid.n() == static_cast<int>(kScanPoints) && dim % 8 == 0 && dim <= kMostScanDim);
  return {.data = blocks, .bytes = scan_block_bytes(dim), .count = count, .dim = dim};
}

}  // namespace

void put_scan_landmark(std::byte* block, std::size_t dim, std::size_t landmark, const std::uint8_t* codes, std::uint16_t scale) {
  for (std::size_t i = 0; i < dim / 4; ++i) {
    block[i * kScanLandmarks + landmark] = static_cast<std::byte>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
  std::memcpy(block + kScanLandmarks * dim / 4 + 2 * landmark, &scale, sizeof(scale));
}

void get_scan_landmark(const std::byte* block, std::size_t dim, std::size_t landmark, std::uint8_t* codes, std::uint16_t* scale) {
  for (std::size_t i = 0; i < dim / 4; ++i) {
    const auto both = std::to_integer<std::uint8_t>(block[i * kScanLandmarks + landmark]);
    codes[2 * i] = both & 15U;
    codes[2 * i + 1] = static_cast<std::uint8_t>(both >> 4);
  }
  std::memcpy(scale, block + kScanLandmarks * dim / 4 + 2 * landmark, sizeof(*scale));
}

void score_scan_blocks(const HiggsGrid& grid, const std::byte* blocks, std::size_t count, MatView<const float> turned_queries,
                       MatView<float> logits) {
  const ScanBlocks all = checked(grid, blocks, count, turned_queries.cols);
  TableSet set;
  for (std::size_t first = 0; first < turned_queries.rows; first += kMostScanQueries) {
    const std::size_t here = std::min(kMostScanQueries, turned_queries.rows - first);
    set.fill_for(grid, turned_queries.row_range(first, first + here));
    float* rows[kMostScanQueries] = {};
    for (std::size_t q = 0; q < here; ++q) rows[q] = logits.row(first + q);
    scan_kernels().all(all, set.at, static_cast<int>(here), rows);
  }
}

void largest_scan_scores(const HiggsGrid& grid, const std::byte* blocks, std::size_t count, MatView<const float> turned_queries,
                         float factor, std::span<float> best) {
  KV_CHECK(turned_queries.rows >= 1 && turned_queries.rows <= kMostScanQueries && best.size() == count);
  const ScanBlocks all = checked(grid, blocks, count, turned_queries.cols);
  TableSet set;
  set.fill_for(grid, turned_queries);
  scan_kernels().largest(all, set.at, static_cast<int>(turned_queries.rows), factor, best.data());
}

}  // namespace kvartet
#endif
