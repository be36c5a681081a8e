// Attention scores as data: what attention exports and eviction reads (DESIGN 3: data comes down, policies stay above).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/matrix.h"

namespace kvartet {

// What a method asks attention to export at the end of prefill.
struct ScoreNeed {
  int window = 0;            // softmax rows of the last `window` queries; 0: none. On a sealed cache at most 1
  bool column_sums = false;  // per query head and key: the weight it received from all queries
  int queries = 0;           // the last queries themselves, after RoPE; only of a first prompt
  // Is there anything to compute? Queries are there anyway.
  bool any() const { return window > 0 || column_sums; }
  // How many of the last queries are needed, to score with or for themselves.
  int last_queries() const { return window > queries ? window : queries; }
  void merge(const ScoreNeed& o) {
    if (o.window > window) window = o.window;
    if (o.queries > queries) queries = o.queries;
    column_sums = column_sums || o.column_sums;
  }
};

// Of one layer. Columns are keys: first the `sealed` rows that the cache held before this prompt (as many in every head), then
// the prompt's tokens. `window` is [heads, window_rows, tokens]: row i belongs to query tokens - window_rows + i, and is 0
// for keys that the query does not see. `column_sums` is [heads, tokens].
struct LayerScores {
  int heads = 0;
  int window_rows = 0;
  int tokens = 0;  // all columns, the sealed ones included
  std::vector<float> window;
  std::vector<float> column_sums;
  int sealed = 0;

  MatView<const float> head_window(int head) const {
    const std::size_t n = static_cast<std::size_t>(window_rows) * static_cast<std::size_t>(tokens);
    return {window.data() + static_cast<std::size_t>(head) * n, static_cast<std::size_t>(window_rows),
            static_cast<std::size_t>(tokens)};
  }
  std::span<const float> head_sums(int head) const {
    return std::span(column_sums)
        .subspan(static_cast<std::size_t>(head) * static_cast<std::size_t>(tokens), static_cast<std::size_t>(tokens));
  }
};

}  // namespace kvartet
