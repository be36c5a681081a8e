#include "quantize/table_scan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/check.h"

#ifndef KVARTET_TABLE_SCAN_TYPES  // read once, not once per instruction set
#define KVARTET_TABLE_SCAN_TYPES
namespace kvartet {

constexpr std::size_t kTablePoints = 256;
constexpr std::size_t kGroupTables = 16;  // that share a step: their sums fit 16 bits
constexpr std::size_t kTablesAtOnce = 8;  // 16 KiB, which the nearest cache holds beside a block of rows and their sums

// The tables of one group, and what their sums mean: step * sum + offset.
struct ScanTableGroup {
  alignas(64) std::uint64_t entries[kGroupTables * kTablePoints];
  float step[4] = {};
  float offset[4] = {};
  std::size_t tables = 0;
};

// One walk of a group's tables over all rows.
struct TableWalk {
  const std::byte* codes = nullptr;  // of the group's first table
  const std::byte* scales = nullptr;
  std::size_t row_bytes = 0;
  std::size_t count = 0;
  int is_first = 0;  // nothing is in `logits` yet
  int is_last = 0;   // what is then there is multiplied by the rows' scales
  float* logits = nullptr;
};

}  // namespace kvartet
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/table_scan.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// entries = bias + <q, point> for one table, rounded: `scaled` are the queries over their steps [4][p], `bias` with the half that
// makes cutting rounding. Neither negative nor beyond 16 bits.
template <int kP>
HWY_INLINE void fill_table(const GridLanes& grid, const float* HWY_RESTRICT scaled, const float* HWY_RESTRICT bias,
                           std::uint64_t* HWY_RESTRICT entries) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  auto* HWY_RESTRICT const out = reinterpret_cast<std::uint16_t*>(entries);
  for (std::size_t j = 0; j < kTablePoints; j += hn::Lanes(d)) {
    hn::Vec<decltype(d)> sums[4];
    for (int h = 0; h < 4; ++h) sums[h] = hn::Set(d, bias[h]);
    for (int k = 0; k < kP; ++k) {
      const auto point = hn::LoadU(d, grid.points + static_cast<std::size_t>(k) * grid.padded + j);
      for (int h = 0; h < 4; ++h) sums[h] = hn::MulAdd(hn::Set(d, scaled[h * kP + k]), point, sums[h]);
    }
    hn::Vec<decltype(d16)> words[4];
    for (int h = 0; h < 4; ++h) words[h] = hn::DemoteTo(d16, hn::ConvertTo(di, sums[h]));
    hn::StoreInterleaved4(words[0], words[1], words[2], words[3], d16, out + 4 * j);
  }
}

void fill_one(const GridLanes& grid, int p, const float* scaled, const float* bias, std::uint64_t* entries) {
  switch (p) {
    case 1: return fill_table<1>(grid, scaled, bias, entries);
    case 2: return fill_table<2>(grid, scaled, bias, entries);
    case 4: return fill_table<4>(grid, scaled, bias, entries);
    case 8: return fill_table<8>(grid, scaled, bias, entries);
    default: return fill_table<16>(grid, scaled, bias, entries);
  }
}

// Hides where a value comes from. Left alone, compilers put two rows into one vector, to pick its lanes apart again for every
// look-up, or add a table's address up anew each time.
template <class T>
HWY_INLINE T opaque(T value) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+r"(value));
#endif
  return value;
}

// Adds the entries of kTables codes to each row's four sums.
template <std::size_t kTables>
HWY_INLINE void add_entries(const std::byte* HWY_RESTRICT codes, std::size_t row_bytes, std::size_t count,
                            const std::uint64_t* entries, std::uint64_t* HWY_RESTRICT sums) {
  const std::uint64_t* const first = opaque(entries);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, codes + i * row_bytes, kTables);
    word = opaque(word);
    std::uint64_t sum = sums[i];
    for (std::size_t s = 0; s < kTables; ++s) sum += first[s * kTablePoints + ((word >> (8 * s)) & 0xffU)];
    sums[i] = sum;
  }
}

HWY_INLINE void add_all(const std::byte* HWY_RESTRICT codes, std::size_t row_bytes, std::size_t count,
                        const ScanTableGroup& group, std::uint64_t* HWY_RESTRICT sums) {
  std::size_t table = 0;
  for (; table + kTablesAtOnce <= group.tables; table += kTablesAtOnce)
    add_entries<kTablesAtOnce>(codes + table, row_bytes, count, group.entries + table * kTablePoints, sums);
  for (; table + 2 <= group.tables; table += 2)
    add_entries<2>(codes + table, row_bytes, count, group.entries + table * kTablePoints, sums);
  if (table < group.tables) add_entries<1>(codes + table, row_bytes, count, group.entries + table * kTablePoints, sums);
}

// Each row's four sums are one vector.
HWY_INLINE void write_logits(const TableWalk& walk, const ScanTableGroup& group, std::size_t first, std::size_t count,
                             const std::uint64_t* HWY_RESTRICT sums) {
  const hn::FixedTag<float, 4> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::FixedTag<std::uint64_t, 1> d64;
  const hn::FixedTag<std::uint16_t, 4> d16;
  const hn::FixedTag<std::uint16_t, 8> d16_all;
  const auto step = hn::LoadU(d, group.step);
  const auto offset = hn::LoadU(d, group.offset);
  float* HWY_RESTRICT logits = walk.logits + 4 * first;
  const std::byte* HWY_RESTRICT scales = walk.scales + first * walk.row_bytes;
  for (std::size_t i = 0; i < count; ++i, logits += 4, scales += walk.row_bytes) {
    const auto lanes = hn::BitCast(d16, hn::LoadU(d64, sums + i));
    auto logit = hn::MulAdd(hn::ConvertTo(d, hn::PromoteTo(di, lanes)), step, offset);
    if (walk.is_first == 0) logit = hn::Add(logit, hn::LoadU(d, logits));
    if (walk.is_last != 0) {
      std::uint16_t scale = 0;
      std::memcpy(&scale, scales, sizeof(scale));
      logit = hn::Mul(logit, hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(du, hn::Set(d16_all, scale)))));
    }
    hn::StoreU(logit, d, logits);
  }
}

void walk_rows(const TableWalk& walk, const ScanTableGroup& group) {
  constexpr std::size_t kRows = 1024;  // many: what a pass leaves in the nearest cache, the next one evicts
  alignas(64) std::uint64_t sums[kRows];
  for (std::size_t first = 0; first < walk.count; first += kRows) {
    const std::size_t here = walk.count - first < kRows ? walk.count - first : kRows;
    for (std::size_t i = 0; i < kRows; ++i) sums[i] = 0;
    add_all(walk.codes + first * walk.row_bytes, walk.row_bytes, here, group, sums);
    write_logits(walk, group, first, here, sums);
  }
}

void split_lanes(const float* HWY_RESTRICT logits, std::size_t count, std::size_t queries, float* HWY_RESTRICT rows,
                 std::size_t stride) {
  const hn::FixedTag<float, 4> d;
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    hn::Vec<decltype(d)> query[4];
    hn::LoadInterleaved4(d, logits + 4 * i, query[0], query[1], query[2], query[3]);
    for (std::size_t h = 0; h < queries; ++h) hn::StoreU(query[h], d, rows + h * stride + i);
  }
  for (; i < count; ++i) {
    for (std::size_t h = 0; h < queries; ++h) rows[h * stride + i] = logits[4 * i + h];
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(fill_one);
HWY_EXPORT(walk_rows);
HWY_EXPORT(split_lanes);

namespace {

constexpr float kMostSum = 65535;

// |<q, point>| is at most this; a little more, so that rounding makes no entry negative.
float product_bound(const HiggsGrid& grid, const float* q) {
  float squares = 0;
  for (int k = 0; k < grid.p(); ++k) squares += q[k] * q[k];
  return 1.00001F * grid.radius() * std::sqrt(squares);
}

// Of a group of tables, from `bounds` [tables] on their products: every sum of entries, each rounded up by half at most, fits.
float step_of(const float* bounds, std::size_t tables) {
  float width = 0;
  for (std::size_t s = 0; s < tables; ++s) width += 2 * bounds[s];
  return width / (kMostSum - static_cast<float>(tables));
}

void fill_group(const HiggsGrid& grid, MatView<const float> queries, std::size_t first, ScanTableGroup* group) {
  const auto p = static_cast<std::size_t>(grid.p());
  float scaled[kGroupTables][4 * 16] = {};  // [4][p] per table
  float bias[kGroupTables][4];
  for (std::size_t h = 0; h < 4; ++h) {
    float bounds[kGroupTables] = {};
    const bool there = h < queries.rows;
    for (std::size_t s = 0; there && s < group->tables; ++s) bounds[s] = product_bound(grid, queries.row(h) + (first + s) * p);
    const float step = step_of(bounds, group->tables);
    const float inverse = step > 0 ? 1 / step : 0.0F;
    group->step[h] = step;
    group->offset[h] = 0;
    for (std::size_t s = 0; s < group->tables; ++s) {
      group->offset[h] -= bounds[s];
      bias[s][h] = bounds[s] * inverse + 0.5F;
      for (std::size_t k = 0; there && k < p; ++k) scaled[s][h * p + k] = queries.row(h)[(first + s) * p + k] * inverse;
    }
  }
  const auto fill = SIMD_CHOOSE(fill_one);
  for (std::size_t s = 0; s < group->tables; ++s)
    fill(grid.lanes(), grid.p(), scaled[s], bias[s], group->entries + s * kTablePoints);
}

}  // namespace

void score_code_rows(const HiggsGrid& grid, const CodeRows& rows, MatView<const float> turned_queries, float factor,
                     float* logits) {
  KV_CHECK(grid.n() == static_cast<int>(kTablePoints) && turned_queries.rows <= kMostTableQueries);
  KV_CHECK(turned_queries.cols == rows.subs * static_cast<std::size_t>(grid.p()));
  ScanTableGroup group;
  for (std::size_t first = 0; first < rows.subs; first += kGroupTables) {
    group.tables = std::min(kGroupTables, rows.subs - first);
    fill_group(grid, turned_queries, first, &group);
    for (float& step : group.step) step *= factor;
    for (float& offset : group.offset) offset *= factor;
    SIMD_CHOOSE(walk_rows)
    ({.codes = rows.rows + first,
      .scales = rows.rows + rows.subs,
      .row_bytes = rows.row_bytes,
      .count = rows.count,
      .is_first = first == 0 ? 1 : 0,
      .is_last = first + group.tables == rows.subs ? 1 : 0,
      .logits = logits},
     group);
  }
}

float table_scan_error(const HiggsGrid& grid, const float* turned_query, std::size_t subs) {
  float error = 0;
  for (std::size_t first = 0; first < subs; first += kGroupTables) {
    const std::size_t tables = std::min(kGroupTables, subs - first);
    float bounds[kGroupTables];
    for (std::size_t s = 0; s < tables; ++s)
      bounds[s] = product_bound(grid, turned_query + (first + s) * static_cast<std::size_t>(grid.p()));
    error += step_of(bounds, tables) * static_cast<float>(tables) / 2;
  }
  return error;
}

void split_quads(const float* logits, MatView<float> rows) {
  KV_CHECK(rows.rows <= kMostTableQueries);
  SIMD_CHOOSE(split_lanes)(logits, rows.cols, rows.rows, rows.data, rows.stride);
}

}  // namespace kvartet
#endif
