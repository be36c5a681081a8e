#include "quantize/higgs_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/bfloat16.h"
#include "core/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/higgs_scan.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// sums[j] = the table entries of landmark j, added up: tables [pairs][16], entries at most 127, at most 256 pairs.
void scan_block(const std::uint8_t* HWY_RESTRICT codes, const std::uint8_t* HWY_RESTRICT tables, std::size_t pairs,
                std::uint16_t* HWY_RESTRICT sums) {
  constexpr std::size_t kLandmarks = 32;
  const hn::CappedTag<std::uint8_t, 32> d;
  const hn::Repartition<std::uint16_t, decltype(d)> d16;
  const auto nibble = hn::Set(d, 0x0f);
  const auto low_byte = hn::Set(d16, 0x00ff);
  for (std::size_t first = 0; first < kLandmarks; first += hn::Lanes(d)) {
    auto even = hn::Zero(d16);
    auto odd = hn::Zero(d16);
    for (std::size_t p = 0; p < pairs; p += 2) {
      const auto both = hn::LoadU(d, codes + p / 2 * kLandmarks + first);
      const auto low = hn::TableLookupBytes(hn::LoadDup128(d, tables + p * 16), hn::And(both, nibble));
      const auto high_codes = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, both))), nibble);
      const auto high = hn::TableLookupBytes(hn::LoadDup128(d, tables + (p + 1) * 16), high_codes);
      const auto sum = hn::BitCast(d16, hn::Add(low, high));  // at most 254
      even = hn::Add(even, hn::And(sum, low_byte));
      odd = hn::Add(odd, hn::ShiftRight<8>(sum));
    }
    alignas(64) std::uint16_t evens[hn::MaxLanes(hn::Repartition<std::uint16_t, hn::CappedTag<std::uint8_t, 32>>())];
    alignas(64) std::uint16_t odds[hn::MaxLanes(hn::Repartition<std::uint16_t, hn::CappedTag<std::uint8_t, 32>>())];
    hn::Store(even, d16, evens);
    hn::Store(odd, d16, odds);
    for (std::size_t i = 0; i < hn::Lanes(d16); ++i) {
      sums[first + 2 * i] = evens[i];
      sums[first + 2 * i + 1] = odds[i];
    }
  }
}

// logits[j] = scale_j * (step * sum_j + offset)
void finish_block(const std::uint16_t* HWY_RESTRICT sums, const std::uint16_t* HWY_RESTRICT scales, float step, float offset,
                  float* HWY_RESTRICT logits) {
  constexpr std::size_t kLandmarks = 32;
  const hn::CappedTag<float, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const hn::RebindToSigned<decltype(d)> di;
  for (std::size_t j = 0; j < kLandmarks; j += hn::Lanes(d)) {
    const auto sum = hn::ConvertTo(d, hn::BitCast(di, hn::PromoteTo(du, hn::LoadU(d16, sums + j))));
    const auto scale = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, scales + j))));
    hn::StoreU(hn::Mul(scale, hn::MulAdd(sum, hn::Set(d, step), hn::Set(d, offset))), d, logits + j);
  }
}

void scan_all(const std::byte* blocks, std::size_t block_bytes, std::size_t count, std::size_t dim, const std::uint8_t* tables,
              float step, float offset, float* HWY_RESTRICT logits) {
  constexpr std::size_t kLandmarks = 32;
  alignas(64) std::uint16_t sums[kLandmarks];
  alignas(64) std::uint16_t scales[kLandmarks];
  alignas(64) float last[kLandmarks];
  for (std::size_t j = 0; j < count; j += kLandmarks) {
    const std::byte* const block = blocks + j / kLandmarks * block_bytes;
    scan_block(reinterpret_cast<const std::uint8_t*>(block), tables, dim / 2, sums);
    std::memcpy(scales, block + kLandmarks * dim / 4, sizeof(scales));
    const bool whole = j + kLandmarks <= count;
    finish_block(sums, scales, step, offset, whole ? logits + j : last);
    if (!whole) std::memcpy(logits + j, last, (count - j) * sizeof(float));
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(scan_all);

namespace {

constexpr std::size_t kMostDim = 512;
constexpr int kPoints = 16;

struct Tables {
  alignas(64) std::uint8_t entries[kMostDim / 2 * kPoints];
  float step = 0;    // of an entry
  float offset = 0;  // sum of what was subtracted from each pair's entries
};

// Entries of a pair are shifted to begin at 0; one step for all pairs.
void fill(const HiggsGrid& grid, const float* query, std::size_t dim, Tables* tables) {
  float products[kMostDim / 2][kPoints];
  float widest = 0;
  float least[kMostDim / 2];
  tables->offset = 0;
  for (std::size_t pair = 0; pair < dim / 2; ++pair) {
    float largest = -INFINITY;
    least[pair] = INFINITY;
    for (int code = 0; code < kPoints; ++code) {
      const float* const point = grid.point(static_cast<std::uint8_t>(code));
      const float x = query[2 * pair] * point[0] + query[2 * pair + 1] * point[1];
      products[pair][code] = x;
      least[pair] = std::min(least[pair], x);
      largest = std::max(largest, x);
    }
    widest = std::max(widest, largest - least[pair]);
    tables->offset += least[pair];
  }
  tables->step = widest / 127;
  const float inverse = widest > 0 ? 127 / widest : 0;
  for (std::size_t pair = 0; pair < dim / 2; ++pair) {
    for (std::size_t code = 0; code < static_cast<std::size_t>(kPoints); ++code) {
      tables->entries[pair * kPoints + code] = static_cast<std::uint8_t>((products[pair][code] - least[pair]) * inverse + 0.5F);
    }
  }
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
  const std::size_t dim = turned_queries.cols;
  KV_CHECK(grid.p() == 2 && grid.n() == kPoints && dim % 8 == 0 && dim <= kMostDim);
  Tables tables;
  for (std::size_t h = 0; h < turned_queries.rows; ++h) {
    fill(grid, turned_queries.row(h), dim, &tables);
    SIMD_CHOOSE(scan_all)(blocks, scan_block_bytes(dim), count, dim, tables.entries, tables.step, tables.offset, logits.row(h));
  }
}

}  // namespace kvartet
#endif
