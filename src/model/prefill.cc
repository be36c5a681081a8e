#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"
#include "core/counted.h"
#include "core/uz.h"
#include "model/finite_rows.h"
#include "model/forward.h"

namespace kvartet {
namespace {

// Below this many rows converting a layer's weights costs more than it saves (ggml multiplies the stored ones as they are).
constexpr int kFewRows = 24;

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

  SharedPrefix* prefix = nullptr;  // null: none is taken from, nor filled
  int prefix_rows = 0;             // no chunk crosses their end
  int first_row = 0;               // that is computed: those in front of it are taken from the prefix

  int layer = 0;
  int chunk_begin = 0;
  int sealed_rows = 0;    // of this layer, before this prompt
  int attended_rows = 0;  // of this layer: attention keeps them packed for the next chunk
  std::vector<std::int32_t> positions;
  Matrix hidden;                  // [tokens - first_row, hidden]: input of the current layer, turned into its output by chunks
  Matrix keys, keys_pre, values;  // [tokens, kv_heads * head_dim]: the one exact layer
  Matrix q, attended;             // [chunk, heads * head_dim]
  Matrix last_q;                  // [window, heads * head_dim]: queries whose scores are exported
  Matrix prefix_q;                // [prefix's queries, heads * head_dim]: the last ones of a prefix that is filled
  ColumnSums columns;             // of the running layer, if asked for
  PrefillAttention attention;

  Impl(Transformer& t, const Options& o) : transformer(t), options(o), attention(o.threads, t.attention_precision()) {}

  const LayerShape& shape() const { return transformer.shape().layers[uz(layer)]; }
  int layer_count() const { return transformer.shape().layer_count(); }

  bool fills_prefix() const { return prefix != nullptr && first_row == 0; }

  // A single row at the end would be multiplied by another ggml kernel than the same row among others: never leave one.
  int chunk_end() const {
    const int left = (chunk_begin < prefix_rows ? prefix_rows : tokens) - chunk_begin;
    if (left == options.chunk + 1 && options.chunk > 2) return chunk_begin + options.chunk - 1;
    return chunk_begin + std::min(left, options.chunk);
  }

  // Takes what the prefix holds if it serves this prompt, and else makes it hold this prompt's.
  void use_prefix(std::span<const std::int32_t> all) {
    prefix_rows = options.prefix_rows;
    KV_CHECK(prefix_rows == prefix_tokens(tokens, prefix_rows));
    prefix = options.prefix;
    if (prefix == nullptr) return;
    const std::span<const std::int32_t> shared = all.first(uz(prefix_rows));
    const PrefixParts wanted = {
        .queries = std::max(need.last_queries(), options.keep_queries), .key_pre = wants_pre, .column_sums = sums_all_queries()};
    if (prefix->serves(shared, wanted)) {
      KV_CHECK(!options.keep_hidden);
      first_row = prefix_rows;
      return;
    }
    *prefix = {};
    prefix->tokens.assign(shared.begin(), shared.end());
    prefix->parts = wanted;
    prefix->parts.queries = std::max(wanted.queries, SharedPrefix::kQueries);
  }

  void begin_layer() {
    attended_rows = 0;
    const std::size_t kv = uz(shape().kv_heads * shape().head_dim);
    keys.resize(uz(tokens), kv);
    values.resize(uz(tokens), kv);
    if (wants_pre) keys_pre.resize(uz(tokens), kv);
    const int observed =
        on_sealed_cache || shape().window > 0 ? 0 : std::min(std::max(need.last_queries(), options.keep_queries), tokens);
    last_q.resize(uz(observed), q_width());
    sealed_rows = on_sealed_cache ? caches[0]->rows(layer, 0) : 0;
    if (sums_columns()) columns.start(shape().heads, sealed_rows + tokens);
    const bool has_queries = fills_prefix() && shape().window == 0;
    prefix_q.resize(has_queries ? uz(std::min(prefix->parts.queries, prefix_rows)) : 0, q_width());
    if (first_row > 0) take_prefix();
  }

  std::size_t q_width() const { return uz(shape().heads * shape().head_dim); }

  // The rows in front of the first that is computed, as the prompt that computed them left them.
  void take_prefix() {
    const SharedPrefix::Layer& held = prefix->layers[uz(layer)];
    std::ranges::copy(held.key, keys.data.begin());
    std::ranges::copy(held.value, values.data.begin());
    if (wants_pre) std::ranges::copy(held.key_pre, keys_pre.data.begin());
    if (sums_columns()) columns.add(held.columns);
    const int first_kept = tokens - static_cast<int>(last_q.rows);
    const MatView<const float> queries(held.queries.data(), held.queries.size() / q_width(), q_width());
    const int first_held = prefix_rows - static_cast<int>(queries.rows);
    for (int t = first_kept; t < first_row; ++t) {
      std::copy_n(queries.row(uz(t - first_held)), queries.cols, last_q.view().row(uz(t - first_kept)));
    }
  }

  void fill_prefix() {
    SharedPrefix::Layer& held = prefix->layers.emplace_back();
    const auto rows = [&](const Matrix& m) {
      const float* const begin = m.data.data();
      return std::vector<float>(begin, begin + uz(prefix_rows) * m.cols);
    };
    held.key = rows(keys);
    held.value = rows(values);
    if (prefix->parts.key_pre) held.key_pre = rows(keys_pre);
    held.queries = prefix_q.data;
    if (prefix->parts.column_sums && sums_columns()) held.columns = columns.first(prefix_rows);
    prefix->whole = layer + 1 == layer_count();
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
    const MatView<float> x = hidden.view().row_range(uz(begin - first_row), uz(end - first_row));
    const std::span<const std::int32_t> where = std::span(positions).subspan(uz(begin), rows);
    KV_TRY(transformer.pre_attention(layer, linear, x, where, out));
    KV_TRY(check_queries(layer, out.q, where));
    keep_last_queries(begin, end);
    if (!output_is_needed(end) && !sums_all_queries()) return {};
    attend(begin, end);
    if (!output_is_needed(end)) return {};
    return transformer.post_attention(layer, linear, attended.view(), x);
  }

  void keep_last_queries(int begin, int end) {
    keep_queries_up_to(tokens, begin, end, last_q);
    if (end <= prefix_rows) keep_queries_up_to(prefix_rows, begin, end, prefix_q);
  }

  // Of the chunk's queries those among the last `kept.rows` in front of row `limit`.
  void keep_queries_up_to(int limit, int begin, int end, Matrix& kept) {
    const int first_kept = limit - static_cast<int>(kept.rows);
    for (int t = std::max(begin, first_kept); t < end; ++t) {
      std::copy_n(q.view().row(uz(t - begin)), q.cols, kept.view().row(uz(t - first_kept)));
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
  KV_CHECK(!impl->on_sealed_cache || (!options.keep && options.prefix_rows == 0));
  impl->sealing.emplace(caches, options.threads);
  impl->need = impl->sealing->need();
  impl->wants_pre = impl->sealing->wants_pre_rope_keys() || options.keep;
  KV_CHECK(!impl->on_sealed_cache || impl->need.window == 0 || (impl->need.window == 1 && !impl->need.column_sums));
  impl->linear = impl->tokens >= kFewRows ? Linear::kConverted : Linear::kStored;
  impl->positions.resize(tokens.size());
  std::iota(impl->positions.begin(), impl->positions.end(), first);
  if (options.prefix_rows > 0) impl->use_prefix(tokens);
  impl->hidden.resize(tokens.size() - uz(impl->first_row), uz(transformer.shape().hidden));
  KV_TRY(transformer.embed(tokens.subspan(uz(impl->first_row)), impl->hidden.view()));
  impl->chunk_begin = impl->first_row;
  return Prefill(std::move(impl));
}

Status Prefill::step() {
  Impl& m = *impl_;
  KV_CHECK(!done());
  if (m.chunk_begin == m.first_row) {
    m.begin_layer();
    if (m.linear == Linear::kConverted) KV_TRY(m.transformer.convert_layer(m.layer));
  }
  const int end = m.chunk_end();
  const double begin = Clock::real().seconds();
  KV_TRY(m.run_chunk(m.chunk_begin, end));
  if (m.fills_prefix() && end <= m.prefix_rows) m.prefix->seconds += Clock::real().seconds() - begin;
  if (m.fills_prefix() && end == m.prefix_rows) m.fill_prefix();
  m.chunk_begin = end;
  if (end < m.tokens) return {};
  KV_TRY(m.seal_layer());
  m.chunk_begin = m.first_row;
  ++m.layer;
  if (done()) m.sealing->finish(m.tokens);
  return {};
}

bool Prefill::done() const { return impl_->layer == impl_->layer_count(); }

double Prefill::progress() const {
  const double within = static_cast<double>(impl_->chunk_begin - impl_->first_row) / (impl_->tokens - impl_->first_row);
  return (impl_->layer + within) / impl_->layer_count();
}

int Prefill::rows_taken() const { return impl_->first_row; }

double Prefill::seal_seconds(int cache) const { return impl_->sealing->seconds(cache); }

double Prefill::all_seal_seconds() const { return impl_->sealing->spent(); }

MatView<const float> Prefill::hidden() const {
  KV_CHECK(done());
  const MatView<const float> all = std::as_const(impl_->hidden).view();
  return impl_->options.keep_hidden ? all : all.row_range(all.rows - 1, all.rows);
}

}  // namespace kvartet
