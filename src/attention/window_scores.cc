// Export of the observation window's softmax rows (compression.md 4.1): a small extra matrix product per layer.
#include <algorithm>
#include <vector>

#include "attention/attention_kernels.h"
#include "attention/packed_queries.h"
#include "attention/prefill_attention.h"
#include "core/check.h"
#include "core/parallel_for.h"
#include "core/uz.h"

namespace kvartet {
namespace {

int divide_up(int a, int b) { return (a + b - 1) / b; }

float* score_row(LayerScores* scores, int head, int row) {
  return scores->window.data() + (uz(head) * uz(scores->window_rows) + uz(row)) * uz(scores->tokens);
}

// Logits of one KV head's window queries against one block of keys, written to the score rows.
class BlockScorer {
 public:
  BlockScorer(const AttentionKernels& kernels, HeadRows<const float> q, HeadRows<const float> k, LayerScores* scores)
      : kernels_(kernels), q_(q), k_(k), scores_(scores), group_(static_cast<int>(q.heads / k.heads)) {
    rows_ = {.tokens = scores->window_rows, .group = group_};
    packed_bytes_ = AlignedScratch::padded_bytes(uz(rows_.groups()) * kernels.query_group_bytes(head_dim()));
    worker_bytes_ = kernels.key_block_bytes(head_dim()) + uz(rows_.groups() * kMicroRows * kPrefillBlock) * sizeof(float);
  }

  void prepare(int threads) {
    worker_ = workspace_.ensure_bytes(k_.heads * packed_bytes_ + uz(threads) * worker_bytes_) + k_.heads * packed_bytes_;
    for (std::size_t kv_head = 0; kv_head < k_.heads; ++kv_head) {
      rows_.first_head = static_cast<int>(kv_head) * group_;
      kernels_.pack_queries(q_, rows_, packed(kv_head));
    }
  }

  void run(int kv_head, int block, int worker) {
    std::byte* const keys = worker_ + uz(worker) * worker_bytes_;
    float* const logits = reinterpret_cast<float*>(keys + kernels_.key_block_bytes(head_dim()));
    const std::size_t begin = uz(block * kPrefillBlock);
    const std::size_t count = std::min(uz(kPrefillBlock), k_.tokens - begin);
    kernels_.pack_keys(k_.head(uz(kv_head)).row_range(begin, begin + count), keys);
    const std::vector<ColumnRange> all(uz(rows_.groups()), {0, static_cast<int>(count)});
    kernels_.score_tile({.queries = packed(uz(kv_head)),
                         .groups = rows_.groups(),
                         .head_dim = head_dim(),
                         .keys = keys,
                         .columns = all.data(),
                         .logits = logits});
    for (int r = 0; r < rows_.rows(); ++r) {
      std::copy_n(logits + uz(r * kPrefillBlock), count, score_row(scores_, kv_head * group_ + r % group_, r / group_) + begin);
    }
  }

 private:
  int head_dim() const { return static_cast<int>(q_.head_dim); }
  std::byte* packed(std::size_t kv_head) { return workspace_.bytes() + kv_head * packed_bytes_; }

  const AttentionKernels& kernels_;
  HeadRows<const float> q_;
  HeadRows<const float> k_;
  LayerScores* scores_;
  int group_;
  TileRows rows_;
  std::size_t packed_bytes_ = 0;
  std::size_t worker_bytes_ = 0;
  AlignedScratch workspace_;
  std::byte* worker_ = nullptr;
};

}  // namespace

void export_window_scores(HeadRows<const float> q, HeadRows<const float> k, int window, int threads, LayerScores* scores) {
  scores->heads = static_cast<int>(q.heads);
  scores->tokens = static_cast<int>(k.tokens);
  scores->window_rows = std::min(window, scores->tokens);
  scores->window.resize(q.heads * uz(scores->window_rows) * k.tokens);
  scores->column_sums.clear();
  if (scores->window_rows <= 0) return;
  KV_CHECK(q.tokens >= uz(scores->window_rows));

  const AttentionKernels kernels = attention_kernels();
  BlockScorer scorer(kernels, q.token_range(q.tokens - uz(scores->window_rows), q.tokens), k, scores);
  scorer.prepare(threads);
  const int blocks = divide_up(scores->tokens, kPrefillBlock);
  parallel_for(threads, static_cast<int>(k.heads) * blocks,
               [&](int index, int worker) { scorer.run(index / blocks, index % blocks, worker); });
  parallel_for(threads, scores->heads * scores->window_rows, [&](int index, int) {
    const int row = index % scores->window_rows;
    float* const weights = score_row(scores, index / scores->window_rows, row);
    const int visible = scores->tokens - scores->window_rows + row + 1;
    kernels.softmax_row(weights, uz(visible), LogitBase::kTwo);
    std::fill(weights + visible, weights + scores->tokens, 0.0F);
  });
}

}  // namespace kvartet
