// SnapKV (compression.md 4): at the end of the prompt keep what its last queries look at, and its last rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/scores.h"
#include "evict/plan.h"

namespace kvartet {

enum class Pool : unsigned char { kMax, kAverage };

struct SnapKvOptions {
  int capacity = 0;  // rows kept, observation window included; above `window`
  int window = 32;   // observation window: its queries score, its rows always stay
  int kernel = 7;    // pooling width, odd
  Pool pool = Pool::kMax;
};

// True when SnapKV drops nothing from a prompt of `tokens` (section 4.2): the cache then stays exactly `full`.
bool snapkv_is_idle(int tokens, const SnapKvOptions& options);

// Rows kept per KV head. `scores` carries at least options.window softmax rows; the last of them count. Query heads of
// one KV head are averaged before pooling. Equal scores go to the lower row (R9).
KeepPlan snapkv_plan(const LayerScores& scores, int kv_heads, const SnapKvOptions& options);

// The same over rows in any order, for passes between decode steps: of `seen` tokens the last `window` stay, and of the rows
// before them the best sums of the window's weights, pooled along positions. Rows of one head, ascending.
std::vector<std::int32_t> snapkv_rows(std::span<const float> sums, std::span<const std::int32_t> positions, int seen,
                                      const SnapKvOptions& options);

// Scores of rows [0, tokens - window) of one KV head: the window's weights summed, averaged over the head's query heads, pooled.
std::vector<double> snapkv_scores(const LayerScores& scores, int kv_head, int kv_heads, const SnapKvOptions& options);

// Sliding maximum or average of width `kernel`, same length. The average counts the zeros beyond the edges.
std::vector<double> pool_scores(std::span<const double> scores, int kernel, Pool pool);

// Indices of the `count` largest scores, ascending. Ties go to the lower index; NaN ranks last.
std::vector<std::int32_t> top_rows(std::span<const double> scores, int count);

}  // namespace kvartet
