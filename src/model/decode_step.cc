#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/uz.h"
#include "model/finite_rows.h"
#include "model/forward.h"

namespace kvartet {
namespace {

MatView<float> resized(std::vector<float>* storage, std::size_t rows, std::size_t cols) {
  storage->resize(rows * cols);
  return {storage->data(), rows, cols};
}

}  // namespace

struct DecodeStep::Impl {
  Transformer& transformer;
  int threads;
  DecodeAttention attention;
  Breakdown breakdown;
  std::vector<float> x_data, q_data, k_data, v_data, attended_data, logits_data;
  // For caches that choose rows before their layer's queries are known: the queries that the layer before's input gives.
  bool guesses = false;
  std::vector<float> guessed_q_data[2], guessed_k_data, guessed_v_data;  // queries of even and odd layers
  std::vector<std::vector<float>> weights_data;                          // per item, only for caches that ask for softmax weights
  std::vector<std::int32_t> tokens, positions;
  std::vector<AttentionTask> tasks;
  std::vector<Status> failures;  // per item: one that failed takes no further part, its attention counts as zeros

  Impl(Transformer& t, int n) : transformer(t), threads(n), attention(n) {}

  Status guess_queries(int layer, MatView<const float> entering);
  void expect_queries(int layer, std::span<const DecodeItem> items);
  MatView<const float> guessed_queries(int layer, std::size_t index) const;  // of one item
  Status run_layer(int layer, std::span<const DecodeItem> items, MatView<float> x);
  void append_rows(int layer, std::span<const DecodeItem> items, MatView<float> k, MatView<float> v);
  Status before_attention(int layer, const DecodeItem& item, std::size_t index, const LayerInputs& in);
  Status first_failure() const;
  bool all_failed() const {
    return std::none_of(failures.begin(), failures.end(), [](const Status& status) { return status.ok(); });
  }
  // A failure while items were still going is nobody's alone.
  Status clear_if_common(Status status) {
    if (!status.ok() && !all_failed()) failures.assign(failures.size(), {});
    return status;
  }
  void make_tasks(int layer, std::span<const DecodeItem> items, MatView<float> q, MatView<float> attended);
  MatView<float> weights_of(std::size_t item, int layer, const SequenceCache& cache);
};

// [heads, rows of the longest head]; empty unless the cache reads weights.
MatView<float> DecodeStep::Impl::weights_of(std::size_t item, int layer, const SequenceCache& cache) {
  if (!cache.wants_weights()) return {};
  const LayerShape& s = transformer.shape().layers[uz(layer)];
  int rows = 0;
  for (const HeadView& view : cache.views(layer)) rows = std::max(rows, view.rows);
  return resized(&weights_data[item], uz(s.heads), uz(rows));
}

Status DecodeStep::Impl::first_failure() const {
  const auto failed = std::find_if(failures.begin(), failures.end(), [](const Status& status) { return !status.ok(); });
  return failed == failures.end() ? Status() : *failed;
}

void DecodeStep::Impl::append_rows(int layer, std::span<const DecodeItem> items, MatView<float> k, MatView<float> v) {
  const LayerShape& s = transformer.shape().layers[uz(layer)];
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!failures[i].ok()) continue;
    const MatView<const float> key(k.row(i), uz(s.kv_heads), uz(s.head_dim));
    const MatView<const float> value(v.row(i), uz(s.kv_heads), uz(s.head_dim));
    failures[i] = items[i].cache->append_row(layer, key, value);
  }
}

Status DecodeStep::Impl::before_attention(int layer, const DecodeItem& item, std::size_t index, const LayerInputs& in) {
  const LayerShape& s = transformer.shape().layers[uz(layer)];
  KV_TRY(check_queries(layer, in.q.row_range(index, index + 1), std::span(positions).subspan(index, 1)));
  const MatView<const float> q(in.q.row(index), uz(s.heads), uz(s.head_dim));
  MatView<const float> guessed;
  if (guesses && layer > 0) guessed = guessed_queries(layer, index);
  KV_TRY(item.cache->before_attention(layer, q, guessed));
  if (item.observer == nullptr) return {};
  const MatView<const float> key(in.k.row(index), uz(s.kv_heads), uz(s.head_dim));
  const MatView<const float> value(in.v.row(index), uz(s.kv_heads), uz(s.head_dim));
  return (*item.observer)({.layer = layer, .q = q, .k = key, .v = value, .guessed_q = guessed});
}

// InfiniGen's guess (offloading.md 6): hidden states change little from layer to layer, so a layer's norm and query weights on
// what enters the layer before it give nearly its queries, a whole layer early. Keys and values of that product are not used.
Status DecodeStep::Impl::guess_queries(int layer, MatView<const float> entering) {
  const LayerShape& s = transformer.shape().layers[uz(layer)];
  LayerInputs guessed;
  guessed.q = resized(&guessed_q_data[layer % 2], entering.rows, uz(s.heads * s.head_dim));
  guessed.k = resized(&guessed_k_data, entering.rows, uz(s.kv_heads * s.head_dim));
  guessed.v = resized(&guessed_v_data, entering.rows, uz(s.kv_heads * s.head_dim));
  return transformer.pre_attention(layer, Linear::kStored, entering, positions, guessed);
}

MatView<const float> DecodeStep::Impl::guessed_queries(int layer, std::size_t index) const {
  const LayerShape& s = transformer.shape().layers[uz(layer)];
  return {guessed_q_data[layer % 2].data() + index * uz(s.heads * s.head_dim), uz(s.heads), uz(s.head_dim)};
}

void DecodeStep::Impl::expect_queries(int layer, std::span<const DecodeItem> items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (failures[i].ok()) items[i].cache->expect_queries(layer, guessed_queries(layer, i));
  }
}

void DecodeStep::Impl::make_tasks(int layer, std::span<const DecodeItem> items, MatView<float> q, MatView<float> attended) {
  const LayerShape& s = transformer.shape().layers[uz(layer)];
  tasks.clear();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!failures[i].ok()) {
      std::fill_n(attended.row(i), attended.cols, 0.0F);
      continue;
    }
    const MatView<float> weights = weights_of(i, layer, *items[i].cache);
    const std::span<const HeadView> views = items[i].cache->views(layer);
    const std::size_t group = uz(s.heads) / views.size();  // 1 where every query head has rows of its own
    for (std::size_t h = 0; h < views.size(); ++h) {
      const std::size_t first_head = h * group;
      AttentionTask task;
      task.view = views[h];
      task.q = q.row(i) + first_head * uz(s.head_dim);
      task.q_stride = uz(s.head_dim);
      task.queries = static_cast<int>(group);
      task.head_dim = s.head_dim;
      task.fine = items[i].cache->selects();
      task.out = attended.row(i) + first_head * uz(s.head_dim);
      task.out_stride = uz(s.head_dim);
      if (weights.data != nullptr) task.weights = weights.row_range(first_head, first_head + group);
      tasks.push_back(task);
    }
  }
}

Status DecodeStep::Impl::run_layer(int layer, std::span<const DecodeItem> items, MatView<float> x) {
  const Clock& clock = Clock::real();
  const LayerShape& s = transformer.shape().layers[uz(layer)];
  const std::size_t n = items.size();
  const std::size_t wide = uz(s.heads * s.head_dim);
  LayerInputs in;
  in.q = resized(&q_data, n, wide);
  in.k = resized(&k_data, n, uz(s.kv_heads * s.head_dim));
  in.v = resized(&v_data, n, uz(s.kv_heads * s.head_dim));
  const MatView<float> attended = resized(&attended_data, n, wide);

  const double begin = clock.seconds();
  const bool guesses_next = guesses && layer + 1 < transformer.shape().layer_count();
  if (guesses_next) KV_TRY(guess_queries(layer + 1, x));
  const double guessed = clock.seconds();
  if (guesses_next) expect_queries(layer + 1, items);
  const double t0 = clock.seconds();
  KV_TRY(transformer.pre_attention(layer, Linear::kStored, x, positions, in));
  const double t1 = clock.seconds();
  append_rows(layer, items, in.k, in.v);
  for (std::size_t i = 0; i < n; ++i) {
    if (failures[i].ok()) failures[i] = before_attention(layer, items[i], i, in);
  }
  if (all_failed()) return first_failure();
  make_tasks(layer, items, in.q, attended);
  const double t2 = clock.seconds();
  attention.run(tasks);
  const double t3 = clock.seconds();
  for (std::size_t i = 0; i < n; ++i) {
    if (!failures[i].ok()) continue;
    MatView<const float> weights;
    if (items[i].cache->wants_weights()) weights = {weights_data[i].data(), uz(s.heads), weights_data[i].size() / uz(s.heads)};
    failures[i] = items[i].cache->after_attention(layer, weights);
  }
  const double t4 = clock.seconds();
  KV_TRY(transformer.post_attention(layer, Linear::kStored, attended, x));
  breakdown.linear += (guessed - begin) + (t1 - t0) + (clock.seconds() - t4);
  breakdown.cache += (t0 - guessed) + (t2 - t1) + (t4 - t3);
  breakdown.attention += t3 - t2;
  return {};
}

DecodeStep::DecodeStep(Transformer& transformer, int threads) : impl_(std::make_unique<Impl>(transformer, threads)) {}
DecodeStep::~DecodeStep() = default;

Status DecodeStep::run(std::span<const DecodeItem> items) {
  Impl& m = *impl_;
  KV_CHECK(!items.empty());
  m.breakdown = {};
  m.failures.assign(items.size(), {});
  m.tokens.clear();
  m.positions.clear();
  m.weights_data.resize(items.size());
  for (const DecodeItem& item : items) {
    m.tokens.push_back(item.token);
    m.positions.push_back(item.cache->next_position());
  }
  m.guesses = std::any_of(items.begin(), items.end(),
                          [](const DecodeItem& item) { return item.observer != nullptr || item.cache->wants_guessed_queries(); });
  const ModelShape& shape = m.transformer.shape();
  const MatView<float> x = resized(&m.x_data, items.size(), uz(shape.hidden));
  KV_TRY(m.transformer.embed(m.tokens, x));
  for (int layer = 0; layer < shape.layer_count(); ++layer) KV_TRY(m.clear_if_common(m.run_layer(layer, items, x)));
  const double begin = Clock::real().seconds();
  const MatView<float> logits = resized(&m.logits_data, items.size(), uz(shape.vocab));
  KV_TRY(m.clear_if_common(m.transformer.logits(x, logits)));
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!m.failures[i].ok()) continue;
    std::copy_n(logits.row(i), uz(shape.vocab), items[i].logits.data());
    items[i].cache->finish_step();
  }
  m.breakdown.head = Clock::real().seconds() - begin;
  return m.first_failure();
}

std::span<const Status> DecodeStep::failures() const { return impl_->failures; }
const DecodeStep::Breakdown& DecodeStep::last() const { return impl_->breakdown; }

}  // namespace kvartet
