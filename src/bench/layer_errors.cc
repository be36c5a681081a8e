#include "bench/layer_errors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/check.h"
#include "core/uz.h"
#include "quantize/tile_format.h"

namespace kvartet {
namespace {

// The rows that one head's view shows, read back: row i of the view is row `begin + i` of the head.
struct ReadRows {
  int begin = 0;
  int rows = 0;
  std::size_t dim = 0;
  std::vector<float> keys, values;  // [rows, dim]
  const float* key(int row) const { return keys.data() + uz(row) * dim; }
  const float* value(int row) const { return values.data() + uz(row) * dim; }
};

std::vector<float> read_side(std::span<const TilePiece> pieces, const ReadRows& view) {
  std::vector<float> out(uz(view.rows) * view.dim);
  for (const TilePiece& piece : pieces) {
    const int first = std::max(piece.row, view.begin);  // a piece may begin with rows that left a window
    const int begin = piece.begin + (first - piece.row);
    if (begin >= piece.end) continue;
    const MatView<float> to(out.data() + uz(first - view.begin) * view.dim, uz(piece.end - begin), view.dim);
    piece.format->kernels.decode(*piece.format, piece.tile, begin, piece.end, to);
  }
  return out;
}

ReadRows read_rows(const HeadView& view, std::size_t dim) {
  ReadRows out{.begin = view.begin, .rows = view.rows - view.begin, .dim = dim, .keys = {}, .values = {}};
  out.keys = read_side(view.keys, out);
  out.values = read_side(view.values, out);
  for (std::size_t i = 0; view.key_mean != nullptr && i < out.keys.size(); ++i) out.keys[i] += view.key_mean[i % dim];
  return out;
}

// Softmax weights of one query over the rows; in double.
std::vector<double> softmax_weights(const float* q, const ReadRows& rows) {
  std::vector<double> weights(uz(rows.rows));
  const double scale = 1 / std::sqrt(static_cast<double>(rows.dim));
  double largest = -INFINITY;
  for (int t = 0; t < rows.rows; ++t) {
    double dot = 0;
    for (std::size_t c = 0; c < rows.dim; ++c) dot += static_cast<double>(q[c]) * static_cast<double>(rows.key(t)[c]);
    weights[uz(t)] = dot * scale;
    largest = std::max(largest, weights[uz(t)]);
  }
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - largest);
  for (double& w : weights) w /= sum;
  return weights;
}

void attend(const std::vector<double>& weights, const ReadRows& rows, double* out) {
  std::fill_n(out, rows.dim, 0.0);
  for (int t = 0; t < rows.rows; ++t) {
    for (std::size_t c = 0; c < rows.dim; ++c) out[c] += weights[uz(t)] * static_cast<double>(rows.value(t)[c]);
  }
}

// What one layer's attention is asked, and what one cache answers.
struct Answer {
  std::vector<ReadRows> views;
  std::vector<double> outputs;  // [heads, dim]
  std::vector<float> weights;   // [heads, width]
  std::size_t width = 0;
};

Answer answer_of(const SequenceCache& cache, int layer, MatView<const float> q) {
  Answer answer;
  for (const HeadView& view : cache.views(layer)) {
    answer.views.push_back(read_rows(view, q.cols));
    answer.width = std::max(answer.width, uz(answer.views.back().rows));
  }
  const std::size_t group = q.rows / answer.views.size();
  answer.outputs.resize(q.rows * q.cols);
  if (cache.wants_weights()) answer.weights.resize(q.rows * answer.width);
  for (std::size_t head = 0; head < q.rows; ++head) {
    const ReadRows& rows = answer.views[head / group];
    const std::vector<double> weights = softmax_weights(q.row(head), rows);
    attend(weights, rows, answer.outputs.data() + head * q.cols);
    if (answer.weights.empty()) continue;
    std::transform(weights.begin(), weights.end(), answer.weights.begin() + static_cast<std::ptrdiff_t>(head * answer.width),
                   [](double w) { return static_cast<float>(w); });
  }
  return answer;
}

void add_outputs(const Answer& answer, const Answer& exact, LayerError* error) {
  for (std::size_t i = 0; i < exact.outputs.size(); ++i) error->outputs.add(answer.outputs[i], exact.outputs[i]);
}

void add_rows(const SequenceCache& cache, int layer, const Answer& answer, const Answer& exact, LayerError* error) {
  if (cache.selects()) {
    error->has_rows = false;
    return;
  }
  for (std::size_t h = 0; h < answer.views.size(); ++h) {
    const ReadRows& rows = answer.views[h];
    const ReadRows& full = exact.views[h];
    const std::vector<std::int32_t> positions = cache.positions(layer, static_cast<int>(h));
    KV_CHECK(std::ssize(positions) == rows.rows);
    for (int row = 0; row < rows.rows; ++row) {
      const int same = positions[uz(row)] - full.begin;  // full's rows are in the order of positions
      for (std::size_t c = 0; c < rows.dim; ++c) {
        error->keys.add(static_cast<double>(rows.key(row)[c]), static_cast<double>(full.key(same)[c]));
        error->values.add(static_cast<double>(rows.value(row)[c]), static_cast<double>(full.value(same)[c]));
      }
    }
  }
}

}  // namespace

double RelativeError::value() const { return squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0; }

double mean_output_error(const LayerErrors& errors) {
  double sum = 0;
  for (const LayerError& layer : errors) sum += layer.outputs.value();
  return errors.empty() ? 0 : sum / static_cast<double>(errors.size());
}

Status add_layer_errors(Engine& engine, std::span<Sequence> sequences, std::span<const Token> tokens,
                        std::span<LayerErrors> errors) {
  KV_CHECK(!sequences.empty() && errors.size() + 1 == sequences.size());
  for (LayerErrors& of_cache : errors) of_cache.resize(engine.shape().layers.size());
  Sequence& dense = sequences[0];
  for (std::size_t step = 0; step < tokens.size(); ++step) {
    const bool last = step + 1 == tokens.size();
    KV_TRY(engine.decode_observed(dense, tokens[step], [&](const LayerQuestion& question) -> Status {
      const auto& [layer, q, k, v, guessed] = question;
      const Answer exact = answer_of(dense.cache, layer, q);
      for (std::size_t c = 1; c < sequences.size(); ++c) {
        SequenceCache& cache = sequences[c].cache;
        KV_TRY(cache.append_row(layer, k, v));
        KV_TRY(cache.before_attention(layer, q, guessed));
        const Answer answer = answer_of(cache, layer, q);
        LayerError& error = errors[c - 1][uz(layer)];
        add_outputs(answer, exact, &error);
        if (last) add_rows(cache, layer, answer, exact, &error);
        const MatView<const float> weights(answer.weights.data(), answer.weights.empty() ? 0 : q.rows, answer.width);
        KV_TRY(cache.after_attention(layer, answer.weights.empty() ? MatView<const float>() : weights));
      }
      return {};
    }));
    for (Sequence& sequence : sequences.subspan(1)) sequence.cache.finish_step();
  }
  return {};
}

}  // namespace kvartet
