// What the two ways to scan landmarks have in common (quantize/higgs_scan.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartet {

inline constexpr std::size_t kMostScanDim = 512;
inline constexpr std::size_t kScanPoints = 16;

struct ScanTables {
  alignas(64) std::uint8_t entries[kMostScanDim / 2 * kScanPoints];
  float step = 0;    // of an entry
  float offset = 0;  // sum of what was subtracted from each pair's entries
};

struct ScanBlocks {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;  // of a block
  std::size_t count = 0;  // of landmarks
  std::size_t dim = 0;
};

struct ScanKernels {
  // logits[q][j] = scale_j * (step * sum_j + offset), for one to four queries.
  void (*all)(const ScanBlocks& blocks, const ScanTables* const* tables, int queries, float* const* logits) = nullptr;
  // best[j] = factor * the largest of them.
  void (*largest)(const ScanBlocks& blocks, const ScanTables* const* tables, int queries, float factor, float* best) = nullptr;
};

ScanKernels scan_kernels_avx512();  // null: not this CPU

}  // namespace kvartet
