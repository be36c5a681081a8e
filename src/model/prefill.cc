#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"
#include "core/counted.h"
#include "model/forward.h"

namespace kvartet {
namespace {

// Below this many rows converting a layer's weights costs more than it saves (ggml multiplies the stored ones as they are).
constexpr int kFewRows = 24;

std::size_t uz(int n) { return static_cast<std::size_t>(n); }

// An owned [rows, cols] matrix of f32.
struct Matrix {
  std::vector<float> data;
  std::size_t rows = 0;
  std::size_t cols = 0;

  void resize(std::size_t r, std::size_t c) {
    data.resize(r * c);
    rows = r;
    cols = c;
  }
  MatView<float> view() { return {data.data(), rows, cols}; }
  MatView<const float> view() const { return {data.data(), rows, cols}; }
};

HeadRows<const float> as_heads(MatView<const float> m, int heads, int head_dim) {
  return {m.data, m.rows, uz(heads), uz(head_dim), m.stride};
}

}  // namespace

struct Prefill::Impl {
  Transformer& transformer;
  Options options;
  std::vector<SequenceCache*> caches;
  int tokens = 0;
  bool on_sealed_cache = false;  // the one cache already holds rows
  Linear linear = Linear::kStored;
  std::optional<LayerSealing> sealing;
  ScoreNeed need;  // of all caches together
  bool wants_pre = false;

  int layer = 0;
  int chunk_begin = 0;
  int sealed_rows = 0;    // of this layer, before this prompt
  int attended_rows = 0;  // of this layer: attention keeps them packed for the next chunk
  std::vector<std::int32_t> positions;
  Matrix hidden;                  // [tokens, hidden]: input of the current layer, turned into its output chunk by chunk
  Matrix keys, keys_pre, values;  // [tokens, kv_heads * head_dim]: the one exact layer
  Matrix q, attended;             // [chunk, heads * head_dim]
  Matrix last_q;                  // [window, heads * head_dim]: queries whose scores are exported
  ColumnSums columns;             // of the running layer, if asked for
  PrefillAttention attention;

  Impl(Transformer& t, const Options& o) : transformer(t), options(o), attention(o.threads) {}

  const LayerShape& shape() const { return transformer.shape().layers[uz(layer)]; }
  int layer_count() const { return transformer.shape().layer_count(); }

  // A single row at the end would be multiplied by another ggml kernel than the same row among others: never leave one.
  int chunk_end() const {
    const int left = tokens - chunk_begin;
    if (left == options.chunk + 1 && options.chunk > 2) return chunk_begin + options.chunk - 1;
    return chunk_begin + std::min(left, options.chunk);
  }

  void begin_layer() {
    attended_rows = 0;
    const std::size_t kv = uz(shape().kv_heads * shape().head_dim);
    keys.resize(uz(tokens), kv);
    values.resize(uz(tokens), kv);
    if (wants_pre) keys_pre.resize(uz(tokens), kv);
    const int observed =
        on_sealed_cache || shape().window > 0 ? 0 : std::min(std::max(need.window, options.keep_queries), tokens);
    last_q.resize(uz(observed), uz(shape().heads * shape().head_dim));
    sealed_rows = on_sealed_cache ? caches[0]->rows(layer, 0) : 0;
    if (sums_columns()) columns.start(shape().heads, sealed_rows + tokens);
  }

  // The window of a sealed cache is one query: its softmax row is the column sums that count this query alone.
  // In a layer with a sliding window nothing is chosen.
  bool sums_columns() const { return shape().window == 0 && (sums_all_queries() || (on_sealed_cache && need.window > 0)); }
  bool sums_all_queries() const { return need.column_sums || options.keep; }

  // Nobody reads the last layer's output except of the last token, unless all hidden rows are kept.
  bool output_is_needed(int end) const { return options.keep_hidden || layer + 1 < layer_count() || end == tokens; }

  Status run_chunk(int begin, int end) {
    const LayerShape& s = shape();
    const std::size_t rows = uz(end - begin);
    q.resize(rows, uz(s.heads * s.head_dim));
    attended.resize(rows, uz(s.heads * s.head_dim));
    LayerInputs out;
    out.q = q.view();
    out.k = keys.view().row_range(uz(begin), uz(end));
    out.v = values.view().row_range(uz(begin), uz(end));
    if (wants_pre) out.k_pre = keys_pre.view().row_range(uz(begin), uz(end));
    const MatView<float> x = hidden.view().row_range(uz(begin), uz(end));
    KV_TRY(transformer.pre_attention(layer, linear, x, std::span(positions).subspan(uz(begin), rows), out));
    keep_last_queries(begin, end);
    if (!output_is_needed(end) && !sums_all_queries()) return {};
    attend(begin, end);
    if (!output_is_needed(end)) return {};
    return transformer.post_attention(layer, linear, attended.view(), x);
  }

  void keep_last_queries(int begin, int end) {
    const int first_kept = tokens - static_cast<int>(last_q.rows);
    for (int t = std::max(begin, first_kept); t < end; ++t) {
      std::copy_n(q.view().row(uz(t - begin)), q.cols, last_q.view().row(uz(t - first_kept)));
    }
  }

  void attend(int begin, int end) {
    const LayerShape& s = shape();
    PrefillTask task;
    task.q = as_heads(q.view(), s.heads, s.head_dim);
    task.k = as_heads(keys.view().row_range(0, uz(end)), s.kv_heads, s.head_dim);
    task.v = as_heads(values.view().row_range(0, uz(end)), s.kv_heads, s.head_dim);
    task.first = begin;
    task.kept = attended_rows;
    task.window = s.window;
    if (on_sealed_cache) task.prefix = caches[0]->views(layer);
    if (sums_columns()) {
      task.columns = &columns;
      task.columns_from = sums_all_queries() ? 0 : tokens - need.window;
    }
    task.out = {attended.data.data(), attended.rows, uz(s.heads), uz(s.head_dim), attended.cols};
    attention.run(task);
    attended_rows = end;
  }

  ExactLayer exact_layer() const {
    const LayerShape& s = shape();
    ExactLayer exact;
    exact.key = as_heads(keys.view(), s.kv_heads, s.head_dim);
    exact.value = as_heads(values.view(), s.kv_heads, s.head_dim);
    if (wants_pre) exact.key_pre = as_heads(keys_pre.view(), s.kv_heads, s.head_dim);
    exact.last_queries = as_heads(last_q.view(), s.heads, s.head_dim);
    return exact;
  }

  Status seal_layer() {
    ExactLayer exact = exact_layer();
    const double begin = Clock::real().seconds();
    const std::vector<float> sums = sums_columns() ? columns.read() : std::vector<float>();
    if (on_sealed_cache) return seal_second_prompt(exact, sums, begin);
    exact.column_sums = sums;
    if (options.keep) options.keep(layer, exact);
    return sealing->seal(layer, shape(), exact);
  }

  Status seal_second_prompt(const ExactLayer& exact, const std::vector<float>& sums, double begin) {
    LayerRows rows{.key = exact.key, .key_pre = exact.key_pre, .value = exact.value};
    LayerScores scores;
    if (sums_columns()) {
      scores.heads = shape().heads;
      scores.tokens = columns.columns();
      scores.sealed = sealed_rows;
      if (!need.column_sums) scores.window_rows = 1;
      (need.column_sums ? scores.column_sums : scores.window) = sums;
      rows.scores = &scores;
    }
    return sealing->seal(layer, rows, Clock::real().seconds() - begin);
  }
};

Prefill::Prefill(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Prefill::Prefill(Prefill&&) noexcept = default;
Prefill& Prefill::operator=(Prefill&&) noexcept = default;
Prefill::~Prefill() = default;

Result<Prefill> Prefill::start(Transformer& transformer, std::span<const std::int32_t> tokens,
                               std::span<SequenceCache* const> caches, const Options& options) {
  KV_CHECK(!caches.empty() && options.chunk > 0);
  if (tokens.empty()) return bad_input("the prompt is empty: give at least one token");
  auto impl = std::make_unique<Impl>(transformer, options);
  impl->caches.assign(caches.begin(), caches.end());
  impl->tokens = static_cast<int>(tokens.size());
  const int first = caches[0]->next_position();
  impl->on_sealed_cache = first > 0;
  KV_CHECK(!impl->on_sealed_cache || caches.size() == 1);
  const int context = transformer.shape().context;
  const int used = impl->on_sealed_cache && caches[0]->is_endless() ? 0 : first;
  if (impl->tokens > context - used) {
    return exhausted(fmt::format("no room for {} on top of {} in the model's context of {}; shorten the text",
                                 counted(impl->tokens, "token"), first, context));
  }
  KV_CHECK(!impl->on_sealed_cache || !options.keep);
  impl->sealing.emplace(caches, options.threads);
  impl->need = impl->sealing->need();
  impl->wants_pre = impl->sealing->wants_pre_rope_keys() || options.keep;
  KV_CHECK(!impl->on_sealed_cache || impl->need.window == 0 || (impl->need.window == 1 && !impl->need.column_sums));
  impl->linear = impl->tokens >= kFewRows ? Linear::kConverted : Linear::kStored;
  impl->positions.resize(tokens.size());
  std::iota(impl->positions.begin(), impl->positions.end(), first);
  impl->hidden.resize(tokens.size(), uz(transformer.shape().hidden));
  KV_TRY(transformer.embed(tokens, impl->hidden.view()));
  return Prefill(std::move(impl));
}

Status Prefill::step() {
  Impl& m = *impl_;
  KV_CHECK(!done());
  if (m.chunk_begin == 0) {
    m.begin_layer();
    if (m.linear == Linear::kConverted) KV_TRY(m.transformer.convert_layer(m.layer));
  }
  const int end = m.chunk_end();
  KV_TRY(m.run_chunk(m.chunk_begin, end));
  m.chunk_begin = end;
  if (end < m.tokens) return {};
  KV_TRY(m.seal_layer());
  m.chunk_begin = 0;
  ++m.layer;
  if (done()) m.sealing->finish(m.tokens);
  return {};
}

bool Prefill::done() const { return impl_->layer == impl_->layer_count(); }

double Prefill::progress() const {
  const double within = static_cast<double>(impl_->chunk_begin) / impl_->tokens;
  return (impl_->layer + within) / impl_->layer_count();
}

double Prefill::seal_seconds(int cache) const { return impl_->sealing->seconds(cache); }

MatView<const float> Prefill::hidden() const {
  KV_CHECK(done());
  const MatView<const float> all = std::as_const(impl_->hidden).view();
  return impl_->options.keep_hidden ? all : all.row_range(all.rows - 1, all.rows);
}

}  // namespace kvartet
