// Prefill attention: many new tokens, causal among themselves, after an optional sealed prefix.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "attention/aligned_scratch.h"
#include "attention/column_sums.h"
#include "attention/decode_attention.h"
#include "attention/precision.h"
#include "core/matrix.h"
#include "core/scores.h"
#include "quantize/tile_format.h"

namespace kvartet {

struct PrefillTask {
  HeadRows<const float> q;  // [chunk tokens, heads, head_dim], after RoPE
  HeadRows<const float> k;  // [tokens so far, kv_heads, head_dim]: the new rows, this chunk's included
  HeadRows<const float> v;
  int first = 0;   // row of k that belongs to q's token 0; query i sees rows 0 .. first + i
  int kept = 0;    // rows of k and v that the last run() had too (same layer, earlier chunk): not packed again
  int window = 0;  // sliding window in tokens; 0: no limit
  // Per KV head: sealed rows in front of k's, all with the same `rows`; empty: none. Without a window every query sees all
  // of them; with one, rows are consecutive tokens, and query i sees what lies at most window - 1 rows before its own.
  std::span<const HeadView> prefix;
  HeadRows<float> out;  // [chunk tokens, heads, head_dim]
  // If set, the weights that this chunk's queries give are added: columns are the prefix's rows (as many in every head), then
  // the rows of k. Costs scratch of 144 rows of weights per thread, and 10 % of the time (docs/decisions/0008-column-sums.md).
  ColumnSums* columns = nullptr;
  int columns_from = 0;  // row of k from which on a query's weights count
};

// Keeps the packed keys and values of the last run, so that the chunks of one layer pack each row once: pass the number
// of rows of the run before as `kept`. With kept = 0 (always right) everything is packed anew: 4 % slower at chunks of 512.
class PrefillAttention {
 public:
  PrefillAttention(int threads, Precision precision) : threads_(threads), precision_(precision), prefix_attention_(threads) {}
  // The result of a query does not depend on how the prompt was cut into chunks, nor on the thread count.
  void run(const PrefillTask& task);

 private:
  struct Layout;
  class Tile;

  void pack(const PrefillTask& task, const Layout& layout);
  void attend_to_prefix(const PrefillTask& task, Layout* layout);
  void add_windowed_tasks(const PrefillTask& task, const AttentionTask& head);
  void add_prefix_columns(const PrefillTask& task, const Layout& layout);

  int threads_;
  Precision precision_;
  std::vector<AlignedScratch> packed_;  // per block of rows: all KV heads' packed keys and values
  int packed_first_block_ = 0;
  int packed_rows_ = 0;
  AlignedScratch tiles_;
  std::vector<std::unique_ptr<std::mutex>> column_locks_;  // per KV head: who adds to its columns
  AlignedScratch prefix_;
  AlignedScratch prefix_weights_;
  DecodeAttention prefix_attention_;
  std::vector<AttentionTask> prefix_tasks_;
};

// Fills scores->window of one layer, see core/scores.h. q holds at least the last `window` queries:
// [>= window, heads, head_dim], its last row being the prompt's last token. A prompt shorter than the window gives as
// many rows as it has tokens. scores->column_sums is emptied: they come from PrefillTask::columns.
void export_window_scores(HeadRows<const float> q, HeadRows<const float> k, int window, int threads, LayerScores* scores);

}  // namespace kvartet
