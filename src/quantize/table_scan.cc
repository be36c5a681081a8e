#include "quantize/table_scan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "quantize/table_scan_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/table_scan.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kTablesAtOnce = 8;  // 16 KiB, which the nearest cache holds beside some blocks of codes and their sums
constexpr std::size_t kBlockRows = 64;

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

void fill_one(const GridLanes& grid, int p, const float* scaled, const float* bias, std::size_t table, ScanTableGroup* group) {
  std::uint64_t* const entries = group->entries + table * kTablePoints;
  switch (p) {
    case 1: return fill_table<1>(grid, scaled, bias, entries);
    case 2: return fill_table<2>(grid, scaled, bias, entries);
    case 4: return fill_table<4>(grid, scaled, bias, entries);
    case 8: return fill_table<8>(grid, scaled, bias, entries);
    default: return fill_table<16>(grid, scaled, bias, entries);
  }
}

// Hides where a value comes from. Left alone, compilers take a table's address up anew for every look-up.
template <class T>
HWY_INLINE T opaque(T value) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+r"(value));
#endif
  return value;
}

// Adds the entries of kTables codes to the four sums of each landmark of a block.
template <std::size_t kTables>
HWY_INLINE void add_entries(const std::byte* HWY_RESTRICT codes, const std::uint64_t* entries, std::uint64_t* HWY_RESTRICT sums) {
  const std::uint64_t* const first = opaque(entries);
  for (std::size_t i = 0; i < kBlockRows; ++i) {
    const std::size_t place = 2 * i % kBlockRows + 2 * i / kBlockRows;
    std::uint64_t sum = sums[i];
    for (std::size_t s = 0; s < kTables; ++s) {
      sum += first[s * kTablePoints + opaque(std::to_integer<std::uint64_t>(codes[s * kBlockRows + place]))];
    }
    sums[i] = sum;
  }
}

HWY_INLINE void add_all(const TableWalk& walk, std::size_t block, std::size_t blocks, const ScanTableGroup& group,
                        std::uint64_t* HWY_RESTRICT sums) {
  std::size_t table = 0;
  const auto codes = [&](std::size_t b) { return walk.codes + (block + b) * walk.block_bytes + table * kBlockRows; };
  const auto entries = [&] { return group.entries + table * kTablePoints; };
  for (; table + kTablesAtOnce <= group.tables; table += kTablesAtOnce)
    for (std::size_t b = 0; b < blocks; ++b) add_entries<kTablesAtOnce>(codes(b), entries(), sums + b * kBlockRows);
  for (; table + 2 <= group.tables; table += 2)
    for (std::size_t b = 0; b < blocks; ++b) add_entries<2>(codes(b), entries(), sums + b * kBlockRows);
  if (table < group.tables)
    for (std::size_t b = 0; b < blocks; ++b) add_entries<1>(codes(b), entries(), sums + b * kBlockRows);
}

// One block's logits of one query from its sums.
HWY_INLINE void write_logits(const TableWalk& walk, const std::uint16_t* HWY_RESTRICT sums,
                             const std::uint16_t* HWY_RESTRICT scales, float step, float offset, float* HWY_RESTRICT logits) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  for (std::size_t i = 0; i < kBlockRows; i += hn::Lanes(d)) {
    auto logit = hn::MulAdd(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d16, sums + i))), hn::Set(d, step), hn::Set(d, offset));
    if (walk.is_first == 0) logit = hn::Add(logit, hn::LoadU(d, logits + i));
    if (walk.is_last != 0) {
      const auto scale = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, scales + i))));
      logit = hn::Mul(logit, scale);
    }
    hn::StoreU(logit, d, logits + i);
  }
}

// One block's logits; `sums` [64][4 queries] are first put query by query. The last block may have fewer landmarks.
HWY_INLINE void write_block(const TableWalk& walk, const ScanTableGroup& group, std::size_t block,
                            const std::uint64_t* HWY_RESTRICT sums) {
  const hn::CappedTag<std::uint16_t, 8> d16;
  const auto* HWY_RESTRICT const numbers = reinterpret_cast<const std::uint16_t*>(sums);
  alignas(64) std::uint16_t of_query[4][kBlockRows];
  alignas(64) std::uint16_t scales[kBlockRows];
  alignas(64) float last[kBlockRows] = {};
  for (std::size_t i = 0; i < kBlockRows; i += hn::Lanes(d16)) {
    hn::Vec<decltype(d16)> query[4];
    hn::LoadInterleaved4(d16, numbers + 4 * i, query[0], query[1], query[2], query[3]);
    for (std::size_t h = 0; h < 4; ++h) hn::Store(query[h], d16, of_query[h] + i);
  }
  std::memcpy(scales, walk.scales + block * walk.block_bytes, sizeof(scales));
  const std::size_t left = walk.count - block * kBlockRows;
  for (std::size_t h = 0; h < group.queries; ++h) {
    float* const logits = walk.logits + h * walk.stride + block * kBlockRows;
    if (left >= kBlockRows) {
      write_logits(walk, of_query[h], scales, group.step[h], group.offset[h], logits);
      continue;
    }
    if (walk.is_first == 0) std::memcpy(last, logits, left * sizeof(float));
    write_logits(walk, of_query[h], scales, group.step[h], group.offset[h], last);
    std::memcpy(logits, last, left * sizeof(float));
  }
}

void walk_blocks(const TableWalk& walk, const ScanTableGroup& group) {
  constexpr std::size_t kBlocks = 16;  // many: what a pass leaves in the nearest cache, the next one evicts
  alignas(64) std::uint64_t sums[kBlocks * kBlockRows];
  const std::size_t count = (walk.count + kBlockRows - 1) / kBlockRows;
  for (std::size_t first = 0; first < count; first += kBlocks) {
    const std::size_t here = count - first < kBlocks ? count - first : kBlocks;
    for (std::size_t i = 0; i < here * kBlockRows; ++i) sums[i] = 0;
    add_all(walk, first, here, group, sums);
    for (std::size_t b = 0; b < here; ++b) write_block(walk, group, first + b, sums + b * kBlockRows);
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(fill_one);
HWY_EXPORT(walk_blocks);

namespace {

constexpr float kMostSum = 65535;
constexpr float kMostByte = 255;

// |<q, point>| is at most this; a little more, so that rounding makes no entry negative.
float product_bound(const HiggsGrid& grid, const float* q) {
  double squares = 0;  // of tiny queries no f32 could hold them
  for (int k = 0; k < grid.p(); ++k) squares += static_cast<double>(q[k]) * static_cast<double>(q[k]);
  return 1.00001F * grid.radius() * static_cast<float>(std::sqrt(squares));
}

// Of a group of tables, from `bounds` [tables] on their products: every entry, or every sum of entries, each rounded up by half
// at most, fits.
float step_of(const HiggsGrid& grid, const float* bounds, std::size_t tables) {
  float widest = 0;
  float together = 0;
  for (std::size_t s = 0; s < tables; ++s) {
    widest = std::max(widest, 2 * bounds[s]);
    together += 2 * bounds[s];
  }
  return has_byte_entries(grid.p()) ? widest / (kMostByte - 1) : together / (kMostSum - static_cast<float>(tables));
}

TableKernels table_kernels() {
  const TableKernels wide = table_kernels_avx512();
  return wide.walk != nullptr ? wide : TableKernels{SIMD_CHOOSE(fill_one), SIMD_CHOOSE(walk_blocks)};
}

// The same for all landmarks of a block; see the layout.
std::byte* code_place(std::byte* blocks, std::size_t subs, std::size_t landmark) {
  const std::size_t at = landmark % kCodeBlockRows;
  return blocks + landmark / kCodeBlockRows * code_block_bytes(subs) + 2 * at % kCodeBlockRows + 2 * at / kCodeBlockRows;
}
std::byte* scale_place(std::byte* blocks, std::size_t subs, std::size_t landmark) {
  return blocks + landmark / kCodeBlockRows * code_block_bytes(subs) + kCodeBlockRows * subs + 2 * (landmark % kCodeBlockRows);
}

void fill_group(const TableKernels& kernels, const HiggsGrid& grid, MatView<const float> queries, std::size_t first,
                ScanTableGroup* group) {
  const auto p = static_cast<std::size_t>(grid.p());
  float scaled[kGroupTables][4 * 16] = {};  // [4][p] per table
  float bias[kGroupTables][4];
  for (std::size_t h = 0; h < 4; ++h) {
    float bounds[kGroupTables] = {};
    const bool there = h < queries.rows;
    for (std::size_t s = 0; there && s < group->tables; ++s) bounds[s] = product_bound(grid, queries.row(h) + (first + s) * p);
    const float step = step_of(grid, bounds, group->tables);
    const float inverse = step >= std::numeric_limits<float>::min() ? 1 / step : 0.0F;  // of smaller ones it is no number
    group->step[h] = step;
    group->offset[h] = 0;
    for (std::size_t s = 0; s < group->tables; ++s) {
      group->offset[h] -= bounds[s];
      bias[s][h] = bounds[s] * inverse + 0.5F;
      for (std::size_t k = 0; there && k < p; ++k) scaled[s][h * p + k] = queries.row(h)[(first + s) * p + k] * inverse;
    }
  }
  group->queries = queries.rows;
  for (std::size_t s = 0; s < group->tables; ++s) kernels.fill(grid.lanes(), grid.p(), scaled[s], bias[s], s, group);
}

void prefetch_first(const CodeBlocks& blocks) {
  const std::size_t count = (blocks.count + kCodeBlockRows - 1) / kCodeBlockRows;
  const std::size_t bytes = std::min(kTableAheadBlocks, count) * code_block_bytes(blocks.subs);
  for (std::size_t line = 0; line < bytes; line += 64) __builtin_prefetch(blocks.blocks + line, 0, 2);
}

}  // namespace

void put_code_row(std::byte* blocks, std::size_t subs, std::size_t landmark, const std::byte* row) {
  std::byte* const place = code_place(blocks, subs, landmark);
  for (std::size_t s = 0; s < subs; ++s) place[s * kCodeBlockRows] = row[s];
  std::memcpy(scale_place(blocks, subs, landmark), row + subs, sizeof(std::uint16_t));
}

void get_code_row(const std::byte* blocks, std::size_t subs, std::size_t landmark, std::byte* row) {
  std::byte* const all = const_cast<std::byte*>(blocks);
  const std::byte* const place = code_place(all, subs, landmark);
  for (std::size_t s = 0; s < subs; ++s) row[s] = place[s * kCodeBlockRows];
  std::memcpy(row + subs, scale_place(all, subs, landmark), sizeof(std::uint16_t));
}

void score_code_blocks(const HiggsGrid& grid, const CodeBlocks& blocks, MatView<const float> turned_queries, float factor,
                       MatView<float> logits) {
  KV_CHECK(grid.n() == static_cast<int>(kTablePoints) && turned_queries.rows <= kMostTableQueries);
  KV_CHECK(turned_queries.cols == blocks.subs * static_cast<std::size_t>(grid.p()));
  KV_CHECK(logits.rows == turned_queries.rows && logits.cols == blocks.count);
  const TableKernels kernels = table_kernels();
  prefetch_first(blocks);  // on their way while tables are filled
  ScanTableGroup group;
  for (std::size_t first = 0; first < blocks.subs; first += kGroupTables) {
    group.tables = std::min(kGroupTables, blocks.subs - first);
    fill_group(kernels, grid, turned_queries, first, &group);
    for (float& step : group.step) step *= factor;
    for (float& offset : group.offset) offset *= factor;
    kernels.walk({.codes = blocks.blocks + first * kCodeBlockRows,
                  .scales = blocks.blocks + blocks.subs * kCodeBlockRows,
                  .block_bytes = code_block_bytes(blocks.subs),
                  .count = blocks.count,
                  .is_first = first == 0 ? 1 : 0,
                  .is_last = first + group.tables == blocks.subs ? 1 : 0,
                  .byte_entries = has_byte_entries(grid.p()) ? 1 : 0,
                  .logits = logits.data,
                  .stride = logits.stride},
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
    error += step_of(grid, bounds, tables) * static_cast<float>(tables) / 2;
  }
  return error;
}

}  // namespace kvartet
#endif
