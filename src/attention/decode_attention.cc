#include "attention/decode_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/attention_kernels.h"
#include "core/check.h"
#include "core/parallel_for.h"
#include "core/uz.h"

namespace kvartet {
namespace {

constexpr int kChunkQueries = 16;  // queries that pass over a block together: their logits stay in the first-level cache
constexpr std::size_t kBlock = kBlockRows;
// Below this many multiply-adds waking a second thread costs more than it saves.
constexpr double kSerialWork = 64.0 * 1024;

std::size_t partial_floats(const AttentionTask& task) {
  return AlignedScratch::padded(uz(task.queries) * uz(task.head_dim)) + 2 * AlignedScratch::padded(uz(task.queries));
}

SoftmaxPartial partial_at(float* at, const AttentionTask& task) {
  SoftmaxPartial partial{.queries = task.queries, .head_dim = task.head_dim};
  partial.max = at;
  partial.sum = at + AlignedScratch::padded(uz(task.queries));
  partial.acc = partial.sum + AlignedScratch::padded(uz(task.queries));
  return partial;
}

// Walks the pieces of one side block by block.
class PieceCursor {
 public:
  PieceCursor(std::span<const TilePiece> pieces, int row) : pieces_(pieces) {
    const auto first = std::partition_point(pieces.begin(), pieces.end(), [row](const TilePiece& p) { return end_of(p) <= row; });
    end_ = static_cast<std::size_t>(first - pieces.begin());
    first_row_ = row;
  }
  // Moves on to the pieces in front of row `end`.
  void advance(int end) {
    begin_ = end_;
    while (end_ < pieces_.size() && pieces_[end_].row < end) ++end_;
  }
  // visit(piece, next): `next` is the tile after it, worth prefetching; null at the end and when it is the same one.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t i = begin_; i < end_; ++i) {
      const bool more = i + 1 < pieces_.size() && pieces_[i + 1].tile != pieces_[i].tile;
      visit(from_first_row(pieces_[i]), more ? pieces_[i + 1].tile : nullptr);
    }
  }

 private:
  static int end_of(const TilePiece& piece) { return piece.row + piece.end - piece.begin; }
  // A view may begin in the middle of a piece.
  TilePiece from_first_row(TilePiece piece) const {
    const int skipped = std::max(0, first_row_ - piece.row);
    piece.row += skipped;
    piece.begin += skipped;
    return piece;
  }

  std::span<const TilePiece> pieces_;
  int first_row_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace

struct DecodeAttention::BlockScratch {
  float* logits = nullptr;      // [kChunkQueries, kBlockRows]
  float* rescale = nullptr;     // [kChunkQueries]
  float* finish_acc = nullptr;  // per value format with finish_output [queries, head_dim], each padded
  const AttentionKernels* kernels = nullptr;
};

void DecodeAttention::plan(std::span<const AttentionTask> tasks) {
  plans_.clear();
  prepared_.clear();
  finish_formats_.clear();
  ranges_.clear();
  for (const AttentionTask& task : tasks) {
    TaskPlan plan{
        .task = &task, .first_prepared = prepared_.size(), .first_finish = finish_formats_.size(), .first_range = ranges_.size()};
    prepared_.push_back({});
    for (const TilePiece& piece : task.view.keys) {
      if (piece.format->kernels.prepare_queries == nullptr) continue;
      const auto known = [&piece](const PreparedQueries& p) { return p.format == piece.format; };
      const auto first = prepared_.begin() + static_cast<std::ptrdiff_t>(plan.first_prepared);
      if (std::none_of(first, prepared_.end(), known)) prepared_.push_back({.format = piece.format});
    }
    for (const TilePiece& piece : task.view.values) {
      if (piece.format->kernels.finish_output == nullptr) continue;
      const auto first = finish_formats_.begin() + static_cast<std::ptrdiff_t>(plan.first_finish);
      if (std::find(first, finish_formats_.end(), piece.format) == finish_formats_.end()) finish_formats_.push_back(piece.format);
    }
    const int range_rows = task.fine && task.view.rows <= kRangeRows ? kBlockRows : kRangeRows;
    int row = task.view.begin / range_rows * range_rows;
    do {
      ranges_.push_back(
          {.plan = plans_.size(), .begin = std::max(row, task.view.begin), .end = std::min(row + range_rows, task.view.rows)});
      row += range_rows;
    } while (row < task.view.rows);
    plan.prepared_end = prepared_.size();
    plan.finish_end = finish_formats_.size();
    plan.range_end = ranges_.size();
    plan.ranges_left = static_cast<int>(plan.range_end - plan.first_range);
    plans_.push_back(plan);
  }
}

std::size_t DecodeAttention::worker_floats() const {
  std::size_t finish = 0;
  for (const TaskPlan& plan : plans_) {
    const std::size_t acc = AlignedScratch::padded(uz(plan.task->queries) * uz(plan.task->head_dim));
    finish = std::max(finish, (plan.finish_end - plan.first_finish) * acc);
  }
  return uz(kChunkQueries) * kBlock + uz(kChunkQueries) + finish;
}

void DecodeAttention::place_scratch() {
  std::size_t total = uz(threads_) * worker_floats();
  const auto prepared_floats = [this](const TaskPlan& plan, std::size_t i) {
    const TileFormat* const format = prepared_[i].format;
    const int head_dim = plan.task->head_dim;  // the queries themselves come first, and a sketch may be shorter
    return AlignedScratch::padded(uz(plan.task->queries) *
                                  uz(format == nullptr ? head_dim : std::max(head_dim, format->prepared_floats())));
  };
  for (const TaskPlan& plan : plans_) {
    for (std::size_t i = plan.first_prepared; i < plan.prepared_end; ++i) total += prepared_floats(plan, i);
    total += (plan.range_end - plan.first_range) * partial_floats(*plan.task);
  }
  float* at = scratch_.ensure(total);
  worker_scratch_ = at;
  at += uz(threads_) * worker_floats();
  for (const TaskPlan& plan : plans_) {
    for (std::size_t i = plan.first_prepared; i < plan.prepared_end; ++i) {
      prepared_[i].q = at;
      at += prepared_floats(plan, i);
    }
    for (std::size_t i = plan.first_range; i < plan.range_end; ++i) {
      ranges_[i].partial = partial_at(at, *plan.task);
      at += partial_floats(*plan.task);
    }
  }
}

void DecodeAttention::prepare(const TaskPlan& plan) {
  const AttentionTask& task = *plan.task;
  const std::size_t head_dim = uz(task.head_dim);
  const float scale = 1.0F / std::sqrt(static_cast<float>(task.head_dim));
  float* const scaled = prepared_[plan.first_prepared].q;
  for (std::size_t query = 0; query < uz(task.queries); ++query) {
    for (std::size_t c = 0; c < head_dim; ++c) scaled[query * head_dim + c] = task.q[query * task.q_stride + c] * scale;
  }
  for (std::size_t i = plan.first_prepared + 1; i < plan.prepared_end; ++i) {
    std::copy_n(scaled, uz(task.queries) * head_dim, prepared_[i].q);
    prepared_[i].format->kernels.prepare_queries(*prepared_[i].format, prepared_[i].q, task.queries);
  }
}

const float* DecodeAttention::prepared_queries(const TaskPlan& plan, const TileFormat* format) const {
  if (format->kernels.prepare_queries == nullptr) return prepared_[plan.first_prepared].q;
  std::size_t i = plan.first_prepared + 1;
  while (prepared_[i].format != format) ++i;
  return prepared_[i].q;
}

// The rows of one block: logits of a chunk of queries, their running softmax, weighted values.
class DecodeAttention::Block {
 public:
  Block(const DecodeAttention& attention, const RangeUnit& range, const BlockScratch& scratch)
      : attention_(attention),
        plan_(attention.plans_[range.plan]),
        task_(*plan_.task),
        partial_(range.partial),
        scratch_(scratch),
        keys_(task_.view.keys, range.begin),
        values_(task_.view.values, range.begin) {}

  void run(int begin, int end) {
    begin_ = begin;
    rows_ = uz(end - begin);
    keys_.advance(end);
    values_.advance(end);
    for (int first = 0; first < task_.queries; first += kChunkQueries) {
      first_ = first;
      queries_ = std::min(kChunkQueries, task_.queries - first);
      score();
      export_logits();
      weigh();
      accumulate();
    }
  }

 private:
  std::size_t offset() const { return uz(first_) * uz(task_.head_dim); }
  std::size_t finish_stride() const { return AlignedScratch::padded(uz(task_.queries) * uz(task_.head_dim)); }

  void score() const {
    keys_.for_each([this](const TilePiece& piece, const std::byte* next) {
      piece.format->kernels.score(*piece.format, {.tile = piece.tile,
                                                  .begin = piece.begin,
                                                  .end = piece.end,
                                                  .q = attention_.prepared_queries(plan_, piece.format) +
                                                       uz(first_) * uz(piece.format->prepared_floats()),
                                                  .queries = queries_,
                                                  .logits = scratch_.logits + uz(piece.row - begin_),
                                                  .logit_stride = kBlock,
                                                  .next = next});
    });
  }

  void export_logits() const {
    if (task_.weights.data == nullptr) return;
    for (std::size_t query = 0; query < uz(queries_); ++query) {
      std::copy_n(scratch_.logits + query * kBlock, rows_, task_.weights.row(uz(first_) + query) + begin_);
    }
  }

  void weigh() const {
    for (std::size_t query = 0; query < uz(queries_) && rows_ < kBlock; ++query) {
      float* const row = scratch_.logits + query * kBlock;
      std::fill(row + rows_, row + kBlock, -std::numeric_limits<float>::infinity());
    }
    scratch_.kernels->online_softmax_e({.logits = scratch_.logits,
                                        .stride = kBlock,
                                        .rows = queries_,
                                        .columns = {0, static_cast<int>(rows_)},
                                        .max = partial_.max + first_,
                                        .sum = partial_.sum + first_,
                                        .rescale = scratch_.rescale});
    rescale(partial_.acc + offset());
    for (std::size_t f = 0; f < plan_.finish_end - plan_.first_finish; ++f) {
      rescale(scratch_.finish_acc + f * finish_stride() + offset());
    }
  }

  void rescale(float* acc) const {
    const std::size_t head_dim = uz(task_.head_dim);
    for (std::size_t query = 0; query < uz(queries_); ++query) {
      const float scale = scratch_.rescale[query];
      if (scale == 1.0F) continue;
      for (std::size_t c = 0; c < head_dim; ++c) acc[query * head_dim + c] *= scale;
    }
  }

  void accumulate() const {
    values_.for_each([this](const TilePiece& piece, const std::byte* next) {
      piece.format->kernels.accumulate(*piece.format, {.tile = piece.tile,
                                                       .begin = piece.begin,
                                                       .end = piece.end,
                                                       .weights = scratch_.logits + uz(piece.row - begin_),
                                                       .weight_stride = kBlock,
                                                       .queries = queries_,
                                                       .out = sums_of(piece.format) + offset(),
                                                       .next = next});
    });
  }

  // Formats that finish their own sums get sums of their own.
  float* sums_of(const TileFormat* format) const {
    if (format->kernels.finish_output == nullptr) return partial_.acc;
    std::size_t f = 0;
    while (attention_.finish_formats_[plan_.first_finish + f] != format) ++f;
    return scratch_.finish_acc + f * finish_stride();
  }

  const DecodeAttention& attention_;
  const TaskPlan& plan_;
  const AttentionTask& task_;
  const SoftmaxPartial& partial_;
  const BlockScratch& scratch_;
  PieceCursor keys_;
  PieceCursor values_;
  int begin_ = 0;
  std::size_t rows_ = 0;
  int first_ = 0;  // of the chunk of queries
  int queries_ = 0;
};

void DecodeAttention::run_range(std::size_t unit, const BlockScratch& scratch) {
  const RangeUnit& range = ranges_[unit];
  TaskPlan& plan = plans_[range.plan];
  const AttentionTask& task = *plan.task;
  const std::size_t floats = uz(task.queries) * uz(task.head_dim);
  const std::size_t finish_stride = AlignedScratch::padded(floats);
  const std::size_t finish_count = plan.finish_end - plan.first_finish;
  clear_partial(range.partial);
  std::fill_n(scratch.finish_acc, finish_count * finish_stride, 0.0F);
  Block block(*this, range, scratch);
  for (int begin = range.begin; begin < range.end;) {
    const int end = std::min(begin / kBlockRows * kBlockRows + kBlockRows, range.end);
    block.run(begin, end);
    begin = end;
  }
  // finish_output is linear, so it may be applied to the sums of one range; ranges then merge without knowing formats.
  for (std::size_t f = 0; f < finish_count; ++f) {
    const TileFormat& format = *finish_formats_[plan.first_finish + f];
    float* const acc = scratch.finish_acc + f * finish_stride;
    format.kernels.finish_output(format, acc, task.queries);
    for (std::size_t i = 0; i < floats; ++i) range.partial.acc[i] += acc[i];
  }
  if (std::atomic_ref<int>(plan.ranges_left).fetch_sub(1, std::memory_order_acq_rel) == 1) finish_task(plan);
}

void DecodeAttention::finish_task(const TaskPlan& plan) {
  const AttentionTask& task = *plan.task;
  const SoftmaxPartial& merged = ranges_[plan.first_range].partial;
  for (std::size_t i = plan.first_range + 1; i < plan.range_end; ++i) merge_partial(merged, ranges_[i].partial);
  for (int query = 0; query < task.queries && task.view.key_mean != nullptr; ++query) {
    const float* const q = prepared_[plan.first_prepared].q + uz(query) * uz(task.head_dim);
    float missing = 0;
    for (std::size_t c = 0; c < uz(task.head_dim); ++c) missing += q[c] * task.view.key_mean[c];
    merged.max[query] += missing;
  }
  if (task.partial.acc != nullptr) {
    std::copy_n(merged.max, uz(task.queries), task.partial.max);
    std::copy_n(merged.sum, uz(task.queries), task.partial.sum);
    std::copy_n(merged.acc, uz(task.queries) * uz(task.head_dim), task.partial.acc);
  } else {
    finish_partial(merged, {task.out, uz(task.queries), uz(task.head_dim), task.out_stride});
  }
  if (task.weights.data == nullptr) return;
  const AttentionKernels kernels = attention_kernels();
  for (std::size_t query = 0; query < uz(task.queries); ++query) {
    float* const weights = task.weights.row(query);
    std::fill_n(weights, task.view.begin, 0.0F);
    kernels.softmax_row(weights + task.view.begin, uz(task.view.rows - task.view.begin), LogitBase::kE);
  }
}

void DecodeAttention::run(std::span<const AttentionTask> tasks) {
  plan(tasks);
  place_scratch();
  double work = 0;
  for (const TaskPlan& plan : plans_) {
    prepare(plan);
    work += static_cast<double>(plan.task->view.rows - plan.task->view.begin) * plan.task->queries * plan.task->head_dim;
  }
  const AttentionKernels kernels = attention_kernels();
  const std::size_t worker_stride = worker_floats();
  const auto run_unit = [&](int unit, int worker) {
    float* const at = worker_scratch_ + uz(worker) * worker_stride;
    const BlockScratch scratch{.logits = at,
                               .rescale = at + uz(kChunkQueries) * kBlock,
                               .finish_acc = at + uz(kChunkQueries) * kBlock + uz(kChunkQueries),
                               .kernels = &kernels};
    run_range(uz(unit), scratch);
  };
  parallel_for(work < kSerialWork ? 1 : threads_, static_cast<int>(ranges_.size()), run_unit);
}

}  // namespace kvartet
