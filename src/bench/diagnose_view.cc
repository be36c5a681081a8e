#include "bench/diagnose_view.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/uz.h"
#include "offload/select_top.h"

namespace kvartet {
namespace {

float dot(const float* a, const float* b, std::size_t n) {
  float sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Softmax attention of one query over rows that are added one by one, in double.
class Attend {
 public:
  Attend(std::size_t dim, double offset) : offset_(offset), sum_(dim, 0.0) {}
  void add(double logit, const float* value) {
    const double weight = std::exp(logit - offset_);
    total_ += weight;
    for (std::size_t c = 0; c < sum_.size(); ++c) sum_[c] += weight * value[c];
  }
  std::vector<double> output() const {
    std::vector<double> out = sum_;
    for (double& x : out) x /= total_;
    return out;
  }

 private:
  double offset_;  // any number near the largest logit
  double total_ = 0;
  std::vector<double> sum_;
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double length(const std::vector<double>& a) { return distance(a, std::vector<double>(a.size(), 0.0)); }

double relative_distance(const std::vector<double>& a, const std::vector<double>& exact) {
  const double norm = length(exact);
  return norm > 0 ? distance(a, exact) / norm : 0;
}

double row_length(const float* row, std::size_t dim) { return std::sqrt(static_cast<double>(dot(row, row, dim))); }

std::vector<std::int32_t> top_of(std::span<const float> scores, const RowSelection& selection) {
  TopSelector top;
  std::vector<std::int32_t> chosen;
  top.select(scores, static_cast<int>(selection.selected.size()), &chosen);
  for (std::int32_t& index : chosen) index = selection.candidates[uz(index)];
  return chosen;
}

// Relative errors of stored rows of the top set.
std::vector<float> row_errors(MatView<const float> stored, const std::vector<float>& exact,
                              std::span<const std::int32_t> positions) {
  std::vector<float> errors;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const float* const row = exact.data() + uz(positions[i]) * stored.cols;
    double error = 0;
    double norm = 0;
    for (std::size_t c = 0; c < stored.cols; ++c) {
      const double lost = static_cast<double>(stored.row(i)[c]) - row[c];
      error += lost * lost;
      norm += static_cast<double>(row[c]) * row[c];
    }
    errors.push_back(static_cast<float>(norm > 0 ? std::sqrt(error / norm) : 0));
  }
  return errors;
}

// One query of a view.
class QueryMeasure {
 public:
  QueryMeasure(const DenseHead& head, std::size_t query, const RowSelection& selection, int near_from)
      : head_(head), query_(query), selection_(selection), near_from_(near_from), dim_(uz(head.dim)) {}

  QueryFigures measure(std::span<const std::int32_t> best, const ViewRows& rows) const {
    QueryFigures figures;
    add_masses(best, &figures);
    add_output_errors(best, rows, &figures);
    return figures;
  }

 private:
  double mass_of(std::span<const std::int32_t> positions) const {
    double mass = 0;
    for (const std::int32_t t : positions) mass += head_.weights[query_][uz(t)];
    return mass;
  }

  void add_masses(std::span<const std::int32_t> best, QueryFigures* figures) const {
    figures->kept_mass = mass_of(selection_.kept);
    figures->selected_mass = mass_of(selection_.selected);
    for (int t = near_from_; t < head_.rows; ++t) figures->generated_mass += head_.weights[query_][uz(t)];
    const double near = figures->kept_mass + figures->generated_mass;
    const std::vector<std::int32_t> own = exact_top_of(head_, query_, selection_);
    figures->own_recall = share_found(selection_.selected, own);
    figures->oracle_mass = near + mass_of(best);
    figures->own_mass = near + mass_of(own);
  }

  Attend start() const { return {dim_, head_.largest[query_]}; }
  const float* exact_value(std::int32_t t) const { return head_.values.data() + uz(t) * dim_; }
  void add_exact(std::int32_t t, Attend* attend) const { attend->add(head_.logits[query_][uz(t)], exact_value(t)); }
  // Attention that sees what every selection sees.
  Attend near_rows() const {
    Attend attend = start();
    for (const std::int32_t t : selection_.kept) add_exact(t, &attend);
    for (int t = near_from_; t < head_.rows; ++t) add_exact(t, &attend);
    return attend;
  }

  void add_output_errors(std::span<const std::int32_t> best, const ViewRows& rows, QueryFigures* figures) const {
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim_));
    const float* const q = rows.queries.row(query_);
    Attend exact_oracle = near_rows();
    Attend stored_oracle = exact_oracle;
    Attend exact_selected = exact_oracle;
    for (const std::int32_t t : selection_.selected) add_exact(t, &exact_selected);
    for (std::size_t i = 0; i < best.size(); ++i) {
      add_exact(best[i], &exact_oracle);
      const float logit = scale * dot(q, rows.stored_keys.row(i), dim_);
      stored_oracle.add(logit, rows.stored_values.row(i));
      const double error = std::abs(static_cast<double>(logit) - head_.logits[query_][uz(best[i])]);
      figures->logit_error += error / static_cast<double>(best.size());
      figures->logit_error_max = std::max(figures->logit_error_max, error);
    }
    Attend attended = start();
    for (std::size_t r = 0; r < rows.attended_keys.rows; ++r)
      attended.add(scale * dot(q, rows.attended_keys.row(r), dim_), rows.attended_values.row(r));
    const std::vector<double>& exact = head_.outputs[query_];
    figures->outputs = {exact_oracle.output(), stored_oracle.output(), exact_selected.output(), attended.output()};
    figures->exact_oracle = relative_distance(figures->outputs.exact_oracle, exact);
    figures->stored_oracle = relative_distance(figures->outputs.stored_oracle, exact);
    figures->exact_selected = relative_distance(figures->outputs.exact_selected, exact);
    figures->stored_selected = relative_distance(figures->outputs.stored_selected, exact);
    figures->exact_distance = distance(figures->outputs.exact_selected, exact);
    figures->exact_bound = 2 * (1 - figures->mass()) * head_.longest_value;
  }

  const DenseHead& head_;
  std::size_t query_;
  const RowSelection& selection_;
  int near_from_;
  std::size_t dim_;
};

}  // namespace

std::vector<float> decoded_rows(std::span<const TilePiece> pieces, int rows, int dim) {
  std::vector<float> out(uz(rows) * uz(dim));
  for (const TilePiece& piece : pieces) {
    const MatView<float> to(out.data() + uz(piece.row) * uz(dim), uz(piece.end - piece.begin), uz(dim));
    piece.format->kernels.decode(*piece.format, piece.tile, piece.begin, piece.end, to);
  }
  return out;
}

DenseHead dense_head(std::vector<float> keys, std::vector<float> values, MatView<const float> queries) {
  DenseHead head;
  const std::size_t dim = queries.cols;
  head.dim = static_cast<int>(dim);
  head.keys = std::move(keys);
  head.values = std::move(values);
  const std::size_t rows = head.keys.size() / dim;
  head.rows = static_cast<int>(rows);
  for (std::size_t t = 0; t < rows; ++t)
    head.longest_value = std::max(head.longest_value, row_length(head.values.data() + t * dim, dim));
  const float scale = 1.0F / std::sqrt(static_cast<float>(head.dim));
  for (std::size_t h = 0; h < queries.rows; ++h) {
    std::vector<float> logits(rows);
    for (std::size_t t = 0; t < rows; ++t) logits[t] = scale * dot(queries.row(h), head.keys.data() + t * dim, dim);
    const double largest = *std::max_element(logits.begin(), logits.end());
    std::vector<double> weights(rows);
    double sum = 0;
    for (std::size_t t = 0; t < rows; ++t) sum += weights[t] = std::exp(logits[t] - largest);
    std::vector<double> output(dim, 0.0);
    for (std::size_t t = 0; t < rows; ++t) {
      weights[t] /= sum;
      for (std::size_t c = 0; c < dim; ++c) output[c] += weights[t] * head.values[t * dim + c];
    }
    head.logits.push_back(std::move(logits));
    head.weights.push_back(std::move(weights));
    head.outputs.push_back(std::move(output));
    head.largest.push_back(largest);
  }
  return head;
}

DenseHead DenseHead::only_query(std::size_t query) const {
  DenseHead own;
  own.dim = dim;
  own.rows = rows;
  own.keys = keys;
  own.values = values;
  own.logits = {logits[query]};
  own.weights = {weights[query]};
  own.outputs = {outputs[query]};
  own.largest = {largest[query]};
  own.longest_value = longest_value;
  return own;
}

std::vector<DenseHead> dense_heads(const SequenceCache& cache, int layer, MatView<const float> queries) {
  std::vector<DenseHead> heads;
  const std::span<const HeadView> views = cache.views(layer);
  const std::size_t group = queries.rows / views.size();
  const int dim = static_cast<int>(queries.cols);
  for (std::size_t h = 0; h < views.size(); ++h) {
    heads.push_back(dense_head(decoded_rows(views[h].keys, views[h].rows, dim), decoded_rows(views[h].values, views[h].rows, dim),
                               queries.row_range(h * group, (h + 1) * group)));
  }
  return heads;
}

std::vector<std::int32_t> exact_top(const DenseHead& head, const RowSelection& selection) {
  const std::size_t count = selection.candidates.size();
  std::vector<float> logits(head.logits.size() * count);
  for (std::size_t h = 0; h < head.logits.size(); ++h)
    for (std::size_t i = 0; i < count; ++i) logits[h * count + i] = head.logits[h][uz(selection.candidates[i])];
  std::vector<float> scores(count);
  aggregate_scores(Aggregate::kMaxSoftmax, {logits.data(), head.logits.size(), count}, scores);
  return top_of(scores, selection);
}

std::vector<std::int32_t> exact_top_of(const DenseHead& head, std::size_t query, const RowSelection& selection) {
  std::vector<float> logits;
  for (const std::int32_t t : selection.candidates) logits.push_back(head.logits[query][uz(t)]);
  return top_of(logits, selection);
}

double share_found(std::span<const std::int32_t> found, std::span<const std::int32_t> wanted) {
  if (wanted.empty()) return 1;
  std::vector<std::int32_t> common;
  std::set_intersection(found.begin(), found.end(), wanted.begin(), wanted.end(), std::back_inserter(common));
  return static_cast<double>(common.size()) / static_cast<double>(wanted.size());
}

ViewFigures measure_view(const DenseHead& head, const RowSelection& selection, std::span<const std::int32_t> best, int near_from,
                         const ViewRows& rows) {
  ViewFigures figures;
  figures.recall = share_found(selection.selected, best);
  figures.key_error = row_errors(rows.stored_keys, head.keys, best);
  figures.value_error = row_errors(rows.stored_values, head.values, best);
  for (std::size_t h = 0; h < head.logits.size(); ++h)
    figures.queries.push_back(QueryMeasure(head, h, selection, near_from).measure(best, rows));
  return figures;
}

}  // namespace kvartet
