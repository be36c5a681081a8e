// Prefill attention: many new tokens, exact and causal among themselves, after an optional sealed prefix.
#pragma once

#include <span>
#include <vector>

#include "core/matrix.h"
#include "core/scores.h"
#include "quantize/tile_format.h"

namespace kvartet {

struct PrefillTask {
  HeadRows<const float> q;  // [chunk tokens, heads, head_dim], after RoPE
  HeadRows<const float> k;  // [tokens so far, kv_heads, head_dim]: the new rows, this chunk's included
  HeadRows<const float> v;
  int first = 0;                       // row of k that belongs to q's token 0; query i sees rows 0 .. first + i
  int window = 0;                      // sliding window in tokens; 0: no limit
  std::span<const HeadView> prefix;    // per KV head: sealed rows that every query sees; empty: none
  HeadRows<float> out;                 // [chunk tokens, heads, head_dim]
};

class PrefillAttention {
 public:
  explicit PrefillAttention(int threads) : threads_(threads) {}
  // The result of a query does not depend on how the prompt was cut into chunks, nor on the thread count.
  void run(const PrefillTask& task);

 private:
  int threads_;
  std::vector<float> scratch_;
};

// Fills scores.window (and, if asked, scores.column_sums) of one layer, see core/scores.h.
// q holds at least the last need.window queries: [>= window, heads, head_dim], its last row being the prompt's last token.
void export_window_scores(HeadRows<const float> q, HeadRows<const float> k, int window, int threads, LayerScores* scores);

}  // namespace kvartet
