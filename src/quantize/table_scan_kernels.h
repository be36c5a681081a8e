// What the two ways to look tables up have in common (quantize/table_scan.h): each fills the tables as it wants them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quantize/higgs.h"

namespace kvartet {

inline constexpr std::size_t kTablePoints = 256;
inline constexpr std::size_t kTableAheadBlocks = 16;  // that a walk fetches before it needs them
inline constexpr std::size_t kGroupTables = 16;       // that share a step: their sums fit 16 bits

// Points of many numbers stand for few bits each: what a byte rounds away is nothing beside what the grid did.
inline constexpr bool has_byte_entries(int p) { return p >= 4; }

// The tables of one group, and what their sums mean: step * sum + offset. Entries are the kernel's own business:
// [tables][256][4 queries] numbers of 16 bits, or [4 queries][tables][lower, upper where there is one][256] bytes.
struct ScanTableGroup {
  alignas(64) std::uint64_t entries[kGroupTables * kTablePoints];
  float step[4] = {};
  float offset[4] = {};
  std::size_t tables = 0;
  std::size_t queries = 0;
};

// One walk of a group's tables over all landmarks.
struct TableWalk {
  const std::byte* codes = nullptr;   // of the group's first table in the first block
  const std::byte* scales = nullptr;  // of the first block
  std::size_t block_bytes = 0;
  std::size_t count = 0;  // of landmarks
  int is_first = 0;       // nothing is in `logits` yet
  int is_last = 0;        // what is then there is multiplied by the landmarks' scales
  int byte_entries = 0;   // all entries are below 256
  float* logits = nullptr;
  std::size_t stride = 0;  // of a query's logits
};

struct TableKernels {
  // Entries = bias + <q, point> for one table, rounded: `scaled` are the queries over their steps [4][p], `bias` [4] with the
  // half that makes cutting rounding. Neither negative nor beyond 16 bits, or 8 (has_byte_entries).
  void (*fill)(const GridLanes& grid, int p, const float* scaled, const float* bias, std::size_t table,
               ScanTableGroup* group) = nullptr;
  void (*walk)(const TableWalk& walk, const ScanTableGroup& group) = nullptr;
};

TableKernels table_kernels_avx512();  // null: not this CPU

}  // namespace kvartet
