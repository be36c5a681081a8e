// H2O (compression.md 6.2): keep the rows that attention has used most so far (heavy hitters), and the newest rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/scores.h"

namespace kvartet {

struct H2oOptions {
  int heavy = 0;   // rows kept for their sums
  int recent = 1;  // newest rows, always kept; >= 1
  int budget() const { return heavy + recent; }
};

// `recent_share` of the budget is recent, at least one row.
H2oOptions h2o_options(int budget, double recent_share);

// Rows of one head that stay, ascending: those of the last `recent` of `seen` tokens, and the `heavy` largest sums of the others.
// `positions` are the rows' positions, in any order. Equal sums go to the lower position (R9).
std::vector<std::int32_t> h2o_rows(std::span<const float> sums, std::span<const std::int32_t> positions, int seen,
                                   const H2oOptions& options);

// Weights of all queries, per KV head the mean over its query heads: [kv_heads][columns].
std::vector<std::vector<float>> group_means(const LayerScores& scores, int kv_heads);

}  // namespace kvartet
