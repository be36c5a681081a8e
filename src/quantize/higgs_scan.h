// Scores of landmarks in the (2,16) grid with the tables in registers: sixteen points are one byte shuffle, and 32 landmarks
// are scored at once (offloading.md 2.3.4 with the alternative 2-bit grid of 5.3).
//
// Landmarks lie in blocks of 32: [dim / 4][32] bytes, each the codes of two neighbouring pairs of channels (low nibble: the
// first), then 32 bf16 scales. Table entries are rounded to 7 bits, an error of about 2 % of the grid's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/matrix.h"
#include "quantize/higgs.h"

namespace kvartet {

inline constexpr std::size_t kScanLandmarks = 32;
inline constexpr std::size_t scan_block_bytes(std::size_t dim) { return kScanLandmarks * (dim / 4 + 2); }

// One landmark of a block: codes [dim / 2], one per pair of channels, and its bf16 scale.
void put_scan_landmark(std::byte* block, std::size_t dim, std::size_t landmark, const std::uint8_t* codes, std::uint16_t scale);
void get_scan_landmark(const std::byte* block, std::size_t dim, std::size_t landmark, std::uint8_t* codes, std::uint16_t* scale);

// logits[h, j] = <query h, landmark j> for turned queries (HiggsCodec::turn_query). dim is a multiple of 8, at most 512.
void score_scan_blocks(const HiggsGrid& grid, const std::byte* blocks, std::size_t count, MatView<const float> turned_queries,
                       MatView<float> logits);

// best[j] = factor * the largest of the logits above over all queries, of which there may be kMostScanQueries: no logit is
// written down. The same bits as score_scan_blocks, a maximum and a product give; factor > 0. best: [count].
inline constexpr std::size_t kMostScanQueries = 4;
void largest_scan_scores(const HiggsGrid& grid, const std::byte* blocks, std::size_t count, MatView<const float> turned_queries,
                         float factor, std::span<float> best);

}  // namespace kvartet
