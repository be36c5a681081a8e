// Decode attention: a few queries against cached tiles, each scored in its own format (DESIGN 4).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "attention/aligned_scratch.h"
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
  SoftmaxPartial partial;  // if partial.acc is set, the unnormalized result goes there instead (prefill on a cache)
  bool fine = false;       // few rows that wait for memory: cut at every block, so that threads share them evenly
  MatView<float> weights;  // optional [queries, >= view.rows]: the softmax weights of every row, 0 before view.begin
};

// Reusable scratch; one per engine, not thread-safe. Allocates only while the largest call so far still grows.
class DecodeAttention {
 public:
  // Rows that one thread attends to in one go; the ranges' partial results are merged in row order.
  static constexpr int kRangeRows = 8 * kBlockRows;

  explicit DecodeAttention(int threads) : threads_(threads) {}
  // Runs all tasks; work is cut by head and by fixed row ranges, so the bits do not depend on the thread count.
  // A view without rows gives zeros (or an empty partial).
  void run(std::span<const AttentionTask> tasks);

 private:
  struct PreparedQueries {
    const TileFormat* format = nullptr;  // null: scaled only
    float* q = nullptr;                  // [queries, head_dim], or as long as the format prepares them
  };
  struct TaskPlan {
    const AttentionTask* task = nullptr;
    std::size_t first_prepared = 0;  // in prepared_: the scaled queries, then one entry per key format that prepares its own
    std::size_t prepared_end = 0;
    std::size_t first_finish = 0;  // in finish_formats_: value formats whose sums need finish_output
    std::size_t finish_end = 0;
    std::size_t first_range = 0;  // in ranges_
    std::size_t range_end = 0;
    int ranges_left = 0;  // the thread that brings it to 0 merges
  };
  struct RangeUnit {
    std::size_t plan = 0;
    int begin = 0;  // rows [begin, end)
    int end = 0;
    SoftmaxPartial partial = {};
  };
  struct BlockScratch;  // one thread's
  class Block;

  void plan(std::span<const AttentionTask> tasks);
  void place_scratch();
  void prepare(const TaskPlan& plan);
  std::size_t worker_floats() const;
  void run_range(std::size_t unit, const BlockScratch& scratch);
  const float* prepared_queries(const TaskPlan& plan, const TileFormat* format) const;
  void finish_task(const TaskPlan& plan);

  int threads_;
  std::vector<TaskPlan> plans_;
  std::vector<PreparedQueries> prepared_;
  std::vector<const TileFormat*> finish_formats_;
  std::vector<RangeUnit> ranges_;
  AlignedScratch scratch_;
  float* worker_scratch_ = nullptr;
};

}  // namespace kvartet
