// Scores of landmarks in one-byte codes (HIGGS grids of 256 points) by table look-up, four queries at a time (offloading.md
// 2.3.4).
//
// A table entry is the product of one point with a query, as a whole number of at most 16 bits. Machine words hold those of four
// queries side by side: one load and one addition of 8 bytes serve all four, where f32 entries would be twice as wide and go
// through the vector units. AVX-512 looks an entry's bytes up apart, 64 landmarks at once (table_scan_avx512.cc), with the same
// sums.
//
// Entries are rounded. They share one step per query and 16 tables. In grids of one or two numbers a point it is the range that
// 16 products can have at most, by Cauchy and Schwarz, over 65,519; in those of four and more, which are coarse themselves, the
// range of the widest table over 254, and an entry is a byte: half the permutations. So a sum is off by at most half a step per
// table (table_scan_error): some hundred times less than the grid, or some thirty times (docs/decisions/0023-byte-entries.md).
//
// Landmarks lie in blocks of 64: [subs][64] codes, then 64 bf16 scales. Among the codes the first 32 landmarks have the even
// places and the others the odd ones: sums of bytes in 16 bits are then in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/matrix.h"
#include "quantize/higgs.h"

namespace kvartet {

inline constexpr std::size_t kMostTableQueries = 4;
inline constexpr std::size_t kCodeBlockRows = 64;
inline constexpr std::size_t code_block_bytes(std::size_t subs) { return kCodeBlockRows * (subs + 2); }
inline constexpr std::size_t code_blocks_bytes(std::size_t rows, std::size_t subs) {
  return (rows + kCodeBlockRows - 1) / kCodeBlockRows * code_block_bytes(subs);
}

struct CodeBlocks {
  const std::byte* blocks = nullptr;
  std::size_t count = 0;  // of landmarks; the last block may have fewer than 64
  std::size_t subs = 0;
};

// One landmark: `subs` codes and then its bf16 scale.
void put_code_row(std::byte* blocks, std::size_t subs, std::size_t landmark, const std::byte* row);
void get_code_row(const std::byte* blocks, std::size_t subs, std::size_t landmark, std::byte* row);

// logits[h, j] = factor * <query h, landmark j> for turned queries (HiggsCodec::turn_query), of which there may be
// kMostTableQueries.
void score_code_blocks(const HiggsGrid& grid, const CodeBlocks& blocks, MatView<const float> turned_queries, float factor,
                       MatView<float> logits);

// What score_code_blocks may be off by for this query and a row of scale 1, beside the rounding of f32.
float table_scan_error(const HiggsGrid& grid, const float* turned_query, std::size_t subs);

}  // namespace kvartet
