#include "attention/prefill_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/attention_kernels.h"
#include "attention/packed_queries.h"
#include "attention/softmax_partial.h"
#include "core/check.h"
#include "core/parallel_for.h"
#include "core/uz.h"

namespace kvartet {
namespace {

constexpr int kTileRows = 144;  // (token, query head) rows per tile: its logits, sums and queries stay in the second-level cache
constexpr int kScoredGroups = 4;  // logits that are not the weights stay in the first-level cache beside a panel of keys
constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

int divide_up(int a, int b) { return (a + b - 1) / b; }

// Keys that the query at row `position` of k sees.
ColumnRange visible_rows(int position, int window) { return {window > 0 ? std::max(0, position - window + 1) : 0, position + 1}; }

ColumnRange within_block(ColumnRange rows, int block_begin) {
  const auto clamp = [block_begin](int row) { return std::clamp(row - block_begin, 0, kPrefillBlock); };
  return {clamp(rows.begin), clamp(rows.end)};
}

}  // namespace

// How one call is cut: by KV head and tile of tokens on the query side, into fixed blocks on the key side.
struct PrefillAttention::Layout {
  AttentionKernels kernels;
  int group = 0;  // query heads per KV head
  int head_dim = 0;
  int tile_tokens = 0;
  int tiles = 0;          // per KV head
  int tile_groups = 0;    // micro tiles of kMicroRows rows in a full tile
  int scored_groups = 0;  // of them whose logits are kept at the same time
  int first_block = 0;    // blocks of k in front of it lie outside every query's window
  int end_block = 0;
  SoftmaxPartial prefix;  // of all queries, [kv_heads * tokens * group]; acc null: no prefix
  // For column sums over a prefix: what a weight relative to the prefix alone is multiplied with, per query as in `prefix`.
  float* prefix_share = nullptr;
  int prefix_rows = 0;  // columns in front of the rows of k

  Layout(const PrefillTask& task, Precision precision) : kernels(attention_kernels(precision)) {
    group = static_cast<int>(task.q.heads / task.k.heads);
    head_dim = static_cast<int>(task.q.head_dim);
    tile_tokens = std::max(1, kTileRows / group);
    tiles = divide_up(static_cast<int>(task.q.tokens), tile_tokens);
    tile_groups = divide_up(tile_tokens * group, kMicroRows);
    scored_groups = kernels.weights_are_logits() ? tile_groups : kScoredGroups;
    first_block = visible_rows(task.first, task.window).begin / kPrefillBlock;
    end_block = divide_up(task.first + static_cast<int>(task.q.tokens), kPrefillBlock);
    if (!task.prefix.empty()) prefix_rows = task.prefix[0].rows;
  }

  // Blocks whose weights a tile keeps until its rows' sums are known.
  int kept_blocks(const PrefillTask& task) const { return task.columns == nullptr ? 1 : end_block - first_block; }

  std::size_t padded_rows() const { return AlignedScratch::padded(uz(tile_groups * kMicroRows)); }
  std::size_t weight_row_bytes() const { return uz(kPrefillBlock) * kernels.element; }
  std::size_t query_bytes() const { return AlignedScratch::padded_bytes(uz(tile_groups) * kernels.query_group_bytes(head_dim)); }
  std::size_t logit_floats() const {
    return kernels.weights_are_logits() ? 0 : uz(scored_groups * kMicroRows) * uz(kPrefillBlock);
  }
  std::size_t kept_bytes() const { return padded_rows() * weight_row_bytes(); }  // weights of one block

  std::size_t key_offset(int kv_head) const {
    return uz(kv_head) * (kernels.key_block_bytes(head_dim) + kernels.value_block_bytes(head_dim));
  }
  std::size_t value_offset(int kv_head) const { return key_offset(kv_head) + kernels.key_block_bytes(head_dim); }
};

void PrefillAttention::pack(const PrefillTask& task, const Layout& layout) {
  KV_CHECK(task.kept >= 0 && task.kept <= std::min(packed_rows_, task.first));
  if (task.kept == 0) packed_first_block_ = layout.first_block;
  KV_CHECK(layout.first_block >= packed_first_block_);
  const int kv_heads = static_cast<int>(task.k.heads);
  const int rows = task.first + static_cast<int>(task.q.tokens);
  const int first = std::max(layout.first_block, task.kept / kPrefillBlock);
  if (packed_.size() < uz(layout.end_block)) packed_.resize(uz(layout.end_block));
  for (int block = first; block < layout.end_block; ++block) packed_[uz(block)].ensure_bytes(layout.key_offset(kv_heads));
  parallel_for(threads_, kv_heads * (layout.end_block - first), [&](int index, int) {
    const int kv_head = index % kv_heads;
    const int block = first + index / kv_heads;
    const std::size_t begin = uz(block * kPrefillBlock);
    const std::size_t end = std::min(begin + uz(kPrefillBlock), uz(rows));
    std::byte* const packed = packed_[uz(block)].bytes();
    layout.kernels.pack_keys(task.k.head(uz(kv_head)).row_range(begin, end), packed + layout.key_offset(kv_head));
    layout.kernels.pack_values(task.v.head(uz(kv_head)).row_range(begin, end), packed + layout.value_offset(kv_head));
  });
  packed_rows_ = rows;
}

// Every token sees the prefix from a row of its own on: a task for each, the first of them over most rows.
void PrefillAttention::add_windowed_tasks(const PrefillTask& task, const AttentionTask& head) {
  const int tokens = static_cast<int>(task.q.tokens);
  const int group = head.queries / tokens;
  for (int t = 0; t < tokens; ++t) {
    const std::size_t first = uz(t * group);
    AttentionTask token = head;
    token.view.begin = std::clamp(head.view.rows + task.first + t - task.window + 1, head.view.begin, head.view.rows);
    token.q += first * head.q_stride;
    token.queries = group;
    token.partial = {head.partial.max + first, head.partial.sum + first, head.partial.acc + first * uz(head.head_dim), group,
                     head.head_dim};
    prefix_tasks_.push_back(token);
  }
}

// Every query's partial result over the sealed rows, by the decode path: each format scores its own tiles.
void PrefillAttention::attend_to_prefix(const PrefillTask& task, Layout* layout) {
  const std::size_t head_dim = task.q.head_dim;
  const std::size_t group = uz(layout->group);
  const std::size_t head_queries = task.q.tokens * group;  // of one KV head
  const std::size_t queries = task.k.heads * head_queries;
  const std::size_t padded = AlignedScratch::padded(queries);
  float* const max = prefix_.ensure(3 * padded + 2 * queries * head_dim);
  float* const sum = max + padded;
  layout->prefix_share = sum + padded;
  float* const acc = layout->prefix_share + padded;
  float* const gathered = acc + queries * head_dim;
  layout->prefix = {max, sum, acc, static_cast<int>(queries), layout->head_dim};
  prefix_tasks_.clear();
  for (std::size_t kv_head = 0; kv_head < task.k.heads; ++kv_head) {
    const std::size_t first = kv_head * head_queries;
    for (std::size_t t = 0; t < task.q.tokens; ++t) {
      std::copy_n(task.q.row(t, kv_head * group), group * head_dim, gathered + (first + t * group) * head_dim);
    }
    AttentionTask head;
    head.view = task.prefix[kv_head];
    head.q = gathered + first * head_dim;
    head.q_stride = head_dim;
    head.queries = static_cast<int>(head_queries);
    head.head_dim = layout->head_dim;
    head.partial = {max + first, sum + first, acc + first * head_dim, head.queries, head.head_dim};
    if (task.window == 0) {
      prefix_tasks_.push_back(head);
    } else {
      add_windowed_tasks(task, head);
    }
  }
  prefix_attention_.run(prefix_tasks_);
}

// The prefix is attended to once more, for its weights alone, a slice of queries at a time: second prompts are short, and
// keeping the first pass's weights would take [queries, rows] of memory.
void PrefillAttention::add_prefix_columns(const PrefillTask& task, const Layout& layout) {
  constexpr std::size_t kSliceFloats = std::size_t{1} << 22;
  const std::size_t rows = uz(layout.prefix_rows);
  const std::size_t head_dim = task.q.head_dim;
  const std::size_t head_queries = task.q.tokens * uz(layout.group);
  const float* const gathered = layout.prefix.acc + task.k.heads * head_queries * head_dim;
  // At most 128 queries: their units fit 32 bits.
  const std::size_t slice = std::clamp<std::size_t>(kSliceFloats / (rows * task.k.heads), 1, 128);
  float* const weights = prefix_weights_.ensure(task.k.heads * slice * (rows + head_dim + 2));
  for (std::size_t begin = 0; begin < head_queries; begin += slice) {
    const std::size_t queries = std::min(slice, head_queries - begin);
    prefix_tasks_.clear();
    float* scratch = weights + task.k.heads * slice * rows;
    for (std::size_t kv_head = 0; kv_head < task.k.heads; ++kv_head) {
      AttentionTask head;
      head.view = task.prefix[kv_head];
      head.q = gathered + (kv_head * head_queries + begin) * head_dim;
      head.q_stride = head_dim;
      head.queries = static_cast<int>(queries);
      head.head_dim = layout.head_dim;
      head.partial = {scratch, scratch + queries, scratch + 2 * queries, head.queries, head.head_dim};
      scratch += queries * (head_dim + 2);
      head.weights = {weights + kv_head * slice * rows, queries, rows};
      prefix_tasks_.push_back(head);
    }
    prefix_attention_.run(prefix_tasks_);
    parallel_for(threads_, static_cast<int>(task.q.heads), [&](int query_head, int) {
      const std::size_t kv_head = uz(query_head / layout.group);
      std::vector<std::uint32_t> sums(rows);
      for (std::size_t i = 0; i < queries; ++i) {
        const std::size_t query = begin + i;
        if (query % uz(layout.group) != uz(query_head % layout.group)) continue;
        const float scale = layout.prefix_share[kv_head * head_queries + query] * ColumnSums::kUnits;
        const float* const row = prefix_tasks_[kv_head].weights.row(i);
        for (std::size_t t = 0; t < rows; ++t) sums[t] += static_cast<std::uint32_t>(row[t] * scale + 0.5F);
      }
      task.columns->add(query_head, 0, sums);
    });
  }
}

// A tile of query rows of one KV head, walked over the blocks that its rows see.
class PrefillAttention::Tile {
 public:
  static std::size_t bytes(const PrefillTask& task, const Layout& l) {
    const std::size_t blocks = uz(l.kept_blocks(task));
    const std::size_t row = sizeof(float) * (blocks + l.kernels.acc_stride(l.head_dim) + 3) + sizeof(ColumnRange);
    return l.query_bytes() + l.padded_rows() * row + blocks * l.kept_bytes() +
           sizeof(float) * (l.logit_floats() + AlignedScratch::padded(2 * uz(l.tile_groups)));
  }

  Tile(const PrefillTask& task, const Layout& layout, int tile, int kv_head, std::byte* scratch)
      : task_(task), layout_(layout), kv_head_(kv_head), stride_(layout.kernels.acc_stride(layout.head_dim)) {
    rows_ = {.first_token = tile * layout.tile_tokens, .group = layout.group, .first_head = kv_head * layout.group};
    rows_.tokens = std::min(layout.tile_tokens, static_cast<int>(task.q.tokens) - rows_.first_token);
    sums_columns_ = task.columns != nullptr && task.first + rows_.first_token + rows_.tokens > task.columns_from;
    const std::size_t padded = padded_ = layout.padded_rows();
    const std::size_t blocks = uz(layout.kept_blocks(task));
    queries_ = scratch;
    kept_ = weights_ = queries_ + layout.query_bytes();
    float* floats = reinterpret_cast<float*>(kept_ + blocks * layout.kept_bytes());
    if (layout.kernels.weights_are_logits()) {
      logits_ = reinterpret_cast<float*>(weights_);
    } else {
      logits_ = floats;
      floats += layout.logit_floats();
    }
    kept_max_ = floats;
    acc_ = kept_max_ + padded * blocks;
    max_ = acc_ + padded * stride_;
    sum_ = max_ + padded;
    rescale_ = sum_ + padded;
    static_assert(sizeof(ColumnRange) == 2 * sizeof(float));
    visible_ = reinterpret_cast<ColumnRange*>(rescale_ + padded);
    columns_ = visible_ + padded;
  }

  void run(std::span<AlignedScratch> blocks, std::mutex& column_lock) {
    layout_.kernels.pack_queries(task_.q, rows_, queries_);
    start_rows();
    const int last = (visible_[rows_.rows() - 1].end - 1) / kPrefillBlock;
    for (int block = visible_[0].begin / kPrefillBlock; block <= last; ++block) {
      run_block(block, blocks[uz(block)].bytes(), block < last ? blocks[uz(block + 1)].bytes() : nullptr);
    }
    write_rows();
    if (sums_columns_) add_columns(visible_[0].begin / kPrefillBlock, last, column_lock);
  }

 private:
  void start_rows() {
    const int padded = rows_.groups() * kMicroRows;
    std::fill_n(max_, padded, kNoLogit);
    std::fill_n(sum_, padded, 0.0F);
    std::fill_n(acc_, uz(padded) * stride_, 0.0F);
    for (int r = 0; r < padded; ++r) {  // rows to spare see what the last row sees
      visible_[r] = visible_rows(task_.first + rows_.token(std::min(r, rows_.rows() - 1)), task_.window);
    }
  }

  void run_block(int block, const std::byte* packed, const std::byte* next) {
    const int begin = block * kPrefillBlock;
    if (sums_columns_) {
      weights_ = kept_ + kept_index(block) * layout_.kept_bytes();
      if (layout_.kernels.weights_are_logits()) logits_ = reinterpret_cast<float*>(weights_);
    }
    for (int g = 0; g < rows_.groups(); ++g) {
      columns_[g] = {within_block(visible_[g * kMicroRows], begin).begin,
                     within_block(visible_[g * kMicroRows + kMicroRows - 1], begin).end};
    }
    for (int g = 0; g < rows_.groups(); g += layout_.scored_groups) score_and_weigh(g, begin, packed);
    layout_.kernels.accumulate_tile({.groups = rows_.groups(),
                                     .head_dim = layout_.head_dim,
                                     .values = packed + layout_.value_offset(kv_head_),
                                     .next_keys = next == nullptr ? nullptr : next + layout_.key_offset(kv_head_),
                                     .columns = columns_,
                                     .weights = weights_,
                                     .rescale = rescale_,
                                     .acc = acc_});
    if (!sums_columns_) return;
    for (int g = 0; g < rows_.groups(); ++g) clear_uncovered(g);
    std::copy_n(max_, padded_, kept_max_ + kept_index(block) * padded_);
  }

  std::size_t kept_index(int block) const { return uz(block - layout_.first_block); }

  // Panels that no row of the group sees were not computed: they hold another tile's numbers.
  void clear_uncovered(int g) {
    const int panel = layout_.kernels.panel;
    const bool seen = columns_[g].begin < columns_[g].end;
    const int begin = seen ? columns_[g].begin / panel * panel : kPrefillBlock;
    const int end = seen ? divide_up(columns_[g].end, panel) * panel : kPrefillBlock;
    if (begin == 0 && end == kPrefillBlock) return;
    for (int r = g * kMicroRows; r < (g + 1) * kMicroRows; ++r) {
      std::byte* const row = weights_ + uz(r) * layout_.weight_row_bytes();
      std::fill(row, row + uz(begin) * layout_.kernels.element, std::byte{0});
      std::fill(row + uz(end) * layout_.kernels.element, row + layout_.weight_row_bytes(), std::byte{0});
    }
  }

  // Every block's weights are relative to the largest logit so far; now that a row's maximum and sum are final, one factor
  // per row and block makes them what the softmax says. Nothing is computed twice.
  void add_columns(int first_block, int last_block, std::mutex& column_lock) {
    alignas(64) std::uint32_t sums[kPrefillBlock];
    float* const scale = rescale_;  // free by now, as are the sums
    float* const final_scale = sum_;
    for (int r = 0; r < rows_.rows(); ++r) {
      const bool counts = task_.first + rows_.token(r) >= task_.columns_from;
      final_scale[r] = counts ? ColumnSums::kUnits / sum_[r] : 0.0F;
    }
    for (int block = first_block; block <= last_block; ++block) {
      const std::size_t index = kept_index(block);
      for (int r = 0; r < rows_.rows(); ++r) {
        const float max = kept_max_[index * padded_ + uz(r)];
        scale[r] = max == max_[r] ? final_scale[r] : final_scale[r] * std::exp2(max - max_[r]);
      }
      const int begin = block * kPrefillBlock;
      const int columns = std::min(kPrefillBlock, task_.first + static_cast<int>(task_.q.tokens) - begin);
      for (int head = 0; head < rows_.group; ++head) {
        layout_.kernels.sum_columns({.weights = kept_ + index * layout_.kept_bytes(),
                                     .scale = scale,
                                     .first = head,
                                     .rows = rows_.rows(),
                                     .step = rows_.group,
                                     .sums = sums});
        const std::scoped_lock lock(column_lock);
        task_.columns->add(rows_.first_head + head, layout_.prefix_rows + begin, {sums, uz(columns)});
      }
    }
  }

  // The groups from `first` on whose logits are there at the same time.
  void score_and_weigh(int first, int block_begin, const std::byte* packed) {
    const int groups = std::min(layout_.scored_groups, rows_.groups() - first);
    const int row = first * kMicroRows;
    const bool is_last = first + groups == rows_.groups();
    float* const logits = layout_.kernels.weights_are_logits() ? logits_ + uz(row) * uz(kPrefillBlock) : logits_;
    layout_.kernels.score_tile({.queries = queries_ + uz(first) * layout_.kernels.query_group_bytes(layout_.head_dim),
                                .groups = groups,
                                .head_dim = layout_.head_dim,
                                .keys = packed + layout_.key_offset(kv_head_),
                                .values = is_last ? packed + layout_.value_offset(kv_head_) : nullptr,
                                .columns = columns_ + first,
                                .logits = logits});
    if (visible_[row].end >= block_begin + kPrefillBlock && visible_[row + groups * kMicroRows - 1].begin <= block_begin) {
      weigh(logits, row, groups * kMicroRows, {0, kPrefillBlock});
      return;
    }
    for (int g = first; g < first + groups; ++g) {
      if (columns_[g].begin >= columns_[g].end) continue;
      float* const group_logits = logits + uz((g - first) * kMicroRows) * uz(kPrefillBlock);
      for (int r = 0; r < kMicroRows; ++r) {
        hide_unseen(visible_[g * kMicroRows + r], block_begin, group_logits + r * kPrefillBlock);
      }
      weigh(group_logits, g * kMicroRows, kMicroRows, columns_[g]);
    }
  }

  void weigh(float* logits, int row, int rows, ColumnRange columns) {
    layout_.kernels.weigh_tile({.logits = logits,
                                .stride = uz(kPrefillBlock),
                                .rows = rows,
                                .columns = columns,
                                .max = max_ + row,
                                .sum = sum_ + row,
                                .rescale = rescale_ + row,
                                .weights = weights_ + uz(row) * layout_.weight_row_bytes()});
  }

  static void hide_unseen(ColumnRange visible, int block_begin, float* logits) {
    const ColumnRange seen = within_block(visible, block_begin);
    std::fill(logits, logits + seen.begin, kNoLogit);
    std::fill(logits + seen.end, logits + kPrefillBlock, kNoLogit);
  }

  void write_rows() {
    int r = 0;
    for (int token = rows_.first_token; token < rows_.first_token + rows_.tokens; ++token) {
      for (int head = rows_.first_head; head < rows_.first_head + rows_.group; ++head, ++r) {
        write_row(r, task_.out.row(uz(token), uz(head)));
      }
    }
  }

  void write_row(int r, float* out) {
    float max = max_[r] * kLn2;  // partial results speak in natural logarithms
    SoftmaxPartial result{&max, sum_ + r, acc_ + uz(r) * stride_, 1, layout_.head_dim};
    if (layout_.prefix.acc != nullptr) {
      const std::size_t query = uz(kv_head_) * task_.q.tokens * uz(rows_.group) + uz(rows_.first_token * rows_.group + r);
      const SoftmaxPartial exact = result;
      result.max = layout_.prefix.max + query;
      result.sum = layout_.prefix.sum + query;
      result.acc = layout_.prefix.acc + query * uz(layout_.head_dim);
      const float prefix_max = *result.max;
      const float prefix_sum = *result.sum;
      merge_partial(result, exact);
      const bool counts = task_.first + rows_.token(r) >= task_.columns_from;
      layout_.prefix_share[query] = counts ? std::exp(prefix_max - *result.max) * prefix_sum / *result.sum : 0.0F;
      max_[r] = *result.max * kLog2E;
      sum_[r] = *result.sum;
    }
    finish_partial(result, {out, 1, uz(layout_.head_dim)});
  }

  const PrefillTask& task_;
  const Layout& layout_;
  int kv_head_;
  std::size_t stride_;  // of acc_
  TileRows rows_;
  bool sums_columns_ = false;
  std::size_t padded_ = 0;        // rows of the tile in scratch
  std::byte* queries_ = nullptr;  // packed
  float* logits_ = nullptr;       // of the running block
  std::byte* weights_ = nullptr;  // of the running block: in kept_
  std::byte* kept_ = nullptr;     // [blocks, padded rows, kPrefillBlock] packed elements; a single block if nothing is summed
  float* kept_max_ = nullptr;     // [blocks, padded rows]: the largest logit after each block
  float* acc_ = nullptr;
  float* max_ = nullptr;  // [rows]
  float* sum_ = nullptr;
  float* rescale_ = nullptr;
  ColumnRange* visible_ = nullptr;  // [rows], rows of k
  ColumnRange* columns_ = nullptr;  // [groups], columns of the current block that some row of the group sees
};

void PrefillAttention::run(const PrefillTask& task) {
  if (task.q.tokens == 0) return;
  KV_CHECK(task.k.heads > 0 && task.q.heads % task.k.heads == 0 && task.first >= 0);
  KV_CHECK(uz(task.first) + task.q.tokens <= task.k.tokens && task.k.tokens == task.v.tokens);
  KV_CHECK(task.prefix.empty() || task.prefix.size() == task.k.heads);
  KV_CHECK(task.columns == nullptr || task.columns->heads() == static_cast<int>(task.q.heads));
  Layout layout(task, precision_);
  pack(task, layout);
  if (!task.prefix.empty()) attend_to_prefix(task, &layout);
  const int kv_heads = static_cast<int>(task.k.heads);
  const std::size_t bytes = Tile::bytes(task, layout);
  std::byte* const scratch = tiles_.ensure_bytes(uz(threads_) * bytes);
  while (column_locks_.size() < task.k.heads) column_locks_.push_back(std::make_unique<std::mutex>());
  // The last tiles see the most keys: they go first, so that no thread is left alone with a long one.
  parallel_for(threads_, layout.tiles * kv_heads, [&](int index, int worker) {
    const int kv_head = index % kv_heads;
    std::byte* const own = scratch + uz(worker) * bytes;
    Tile(task, layout, layout.tiles - 1 - index / kv_heads, kv_head, own).run(packed_, *column_locks_[uz(kv_head)]);
  });
  if (task.columns != nullptr && layout.prefix_rows > 0) add_prefix_columns(task, layout);
}

}  // namespace kvartet
