// Scores of rows of one-byte codes (HIGGS grids of 256 points) by table look-up, four queries at a time (offloading.md 2.3.4).
//
// A table entry is the products of one point with four queries, as whole numbers of 16 bits side by side in a machine word: one
// load and one addition of 8 bytes serve all four, where f32 entries would be twice as wide and go through the vector units.
//
// Entries are rounded. They share one step per query and 16 tables: the range that 16 products can have at most, by Cauchy and
// Schwarz, over 65,519. So a sum is off by at most half a step per table (table_scan_error), some hundred times less than the
// grid.
#pragma once

#include <cstddef>

#include "core/matrix.h"
#include "quantize/higgs.h"

namespace kvartet {

inline constexpr std::size_t kMostTableQueries = 4;

// Rows `row_bytes` apart, each `subs` codes and then a bf16 scale.
struct CodeRows {
  const std::byte* rows = nullptr;
  std::size_t row_bytes = 0;
  std::size_t count = 0;
  std::size_t subs = 0;
};

// logits[4 * j + h] = factor * <query h, row j> for turned queries (HiggsCodec::turn_query), of which there may be
// kMostTableQueries; zeros for those that are missing. logits: [4 * count].
void score_code_rows(const HiggsGrid& grid, const CodeRows& rows, MatView<const float> turned_queries, float factor,
                     float* logits);

// What score_code_rows may be off by for this query and a row of scale 1, beside the rounding of f32.
float table_scan_error(const HiggsGrid& grid, const float* turned_query, std::size_t subs);

// rows[h, j] = logits[4 * j + h], for as many h as `rows` has.
void split_quads(const float* logits, MatView<float> rows);

}  // namespace kvartet
