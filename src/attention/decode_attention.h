// Decode attention: a few queries against cached tiles, each scored in its own format (DESIGN 4).
#pragma once

#include <span>
#include <vector>

#include "attention/softmax_partial.h"
#include "core/matrix.h"
#include "quantize/tile_format.h"

namespace kvartet {

// One (sequence, KV head): all query heads of its group, or several tokens of them.
struct AttentionTask {
  HeadView view;
  const float* q = nullptr;  // [queries, q_stride], after RoPE, not yet scaled
  std::size_t q_stride = 0;
  int queries = 0;
  int head_dim = 0;
  float* out = nullptr;  // [queries, out_stride], unless `partial.acc` is set
  std::size_t out_stride = 0;
  SoftmaxPartial partial;          // if partial.acc is set, the unnormalized result goes there instead (prefill on a cache)
  MatView<float> weights;          // optional [queries, >= view.rows]: the softmax weights of every row
};

// Reusable scratch; one per engine, not thread-safe.
class DecodeAttention {
 public:
  explicit DecodeAttention(int threads) : threads_(threads) {}
  // Runs all tasks; work is cut by head and by fixed row ranges, so the bits do not depend on the thread count.
  void run(std::span<const AttentionTask> tasks);

 private:
  int threads_;
  std::vector<float> scratch_;
};

}  // namespace kvartet
