#include "bench/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "offload/select_top.h"

namespace kvartet {
namespace {

std::size_t uz(int n) { return static_cast<std::size_t>(n); }

// Rows of one side read back as floats: [rows, head_dim].
std::vector<float> decoded(std::span<const TilePiece> pieces, int rows, int dim) {
  std::vector<float> out(uz(rows) * uz(dim));
  for (const TilePiece& piece : pieces) {
    const MatView<float> to(out.data() + uz(piece.row) * uz(dim), uz(piece.end - piece.begin), uz(dim));
    piece.format->kernels.decode(*piece.format, piece.tile, piece.begin, piece.end, to);
  }
  return out;
}

float dot(const float* a, const float* b, std::size_t n) {
  float sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Softmax attention of one query over rows that are added one by one, in double.
class Attend {
 public:
  explicit Attend(std::size_t dim) : sum_(dim, 0.0) {}
  void add(double logit, const float* value, double offset) {
    const double weight = std::exp(logit - offset);
    total_ += weight;
    for (std::size_t c = 0; c < sum_.size(); ++c) sum_[c] += weight * value[c];
  }
  std::vector<double> output() const {
    std::vector<double> out = sum_;
    for (double& x : out) x /= total_;
    return out;
  }

 private:
  double total_ = 0;
  std::vector<double> sum_;
};

double relative_distance(const std::vector<double>& a, const std::vector<double>& exact) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - exact[i]) * (a[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : 0;
}

// One KV head of the dense run at one step.
struct DenseHead {
  int dim = 0;
  int rows = 0;
  std::vector<float> keys, values;           // [rows, dim]
  std::vector<std::vector<float>> logits;    // per query of the group: [rows]
  std::vector<std::vector<double>> weights;  // softmax of them
  std::vector<std::vector<double>> outputs;  // [dim]
  std::vector<double> largest;
};

DenseHead dense_head(const HeadView& view, MatView<const float> queries) {
  DenseHead head;
  head.dim = static_cast<int>(queries.cols);
  head.rows = view.rows;
  head.keys = decoded(view.keys, view.rows, head.dim);
  head.values = decoded(view.values, view.rows, head.dim);
  const std::size_t dim = queries.cols;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head.dim));
  for (std::size_t h = 0; h < queries.rows; ++h) {
    std::vector<float> logits(uz(view.rows));
    for (std::size_t t = 0; t < logits.size(); ++t) logits[t] = scale * dot(queries.row(h), head.keys.data() + t * dim, dim);
    const double largest = *std::max_element(logits.begin(), logits.end());
    std::vector<double> weights(logits.size());
    double sum = 0;
    for (std::size_t t = 0; t < logits.size(); ++t) sum += weights[t] = std::exp(logits[t] - largest);
    std::vector<double> output(dim, 0.0);
    for (std::size_t t = 0; t < logits.size(); ++t) {
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

struct Samples {
  std::vector<float> recall, mass, oracle_mass, mass_ratio;
  std::vector<float> exact_oracle, stored_oracle, exact_selected, stored_selected;
  std::vector<float> key_error, logit_error;
  std::vector<std::vector<float>> layer_recall;
};

// The exact top set of a head's candidates: the same number of rows, one set for the group.
std::vector<std::int32_t> exact_top(const DenseHead& head, const RowSelection& selection) {
  const std::size_t count = selection.candidates.size();
  std::vector<float> logits(head.logits.size() * count);
  for (std::size_t h = 0; h < head.logits.size(); ++h)
    for (std::size_t i = 0; i < count; ++i) logits[h * count + i] = head.logits[h][uz(selection.candidates[i])];
  std::vector<float> scores(count);
  aggregate_scores(Aggregate::kMaxSoftmax, {logits.data(), head.logits.size(), count}, scores);
  TopSelector top;
  std::vector<std::int32_t> chosen;
  top.select(scores, static_cast<int>(selection.selected.size()), &chosen);
  for (std::int32_t& index : chosen) index = selection.candidates[uz(index)];
  return chosen;
}

// Some rows of a cache as floats, keys and values alike: [rows, dim].
struct FloatRows {
  MatView<const float> keys;
  MatView<const float> values;
};

// One cache at one layer of one step, against the dense run.
class HeadDiagnosis {
 public:
  HeadDiagnosis(const DenseHead& dense, RowSelection selection, int prompt)
      : dense_(dense), selection_(std::move(selection)), near_(selection_.kept), best_(exact_top(dense, selection_)) {
    for (int t = prompt; t < dense.rows; ++t) near_.push_back(t);  // generated
  }
  const std::vector<std::int32_t>& best() const { return best_; }

  // `stored`: rows of best() as the cache has them. `attended`: the rows it really attends to.
  void measure(MatView<const float> queries, const FloatRows& stored, const FloatRows& attended, Samples* out,
               std::vector<float>* layer_recall) const {
    const float recall = recall_of_selection();
    out->recall.push_back(recall);
    layer_recall->push_back(recall);
    measure_keys(stored.keys, out);
    for (std::size_t h = 0; h < queries.rows; ++h) {
      measure_logits(h, queries.row(h), stored.keys, out);
      measure_mass(h, out);
      measure_outputs(h, queries.row(h), stored, attended, out);
    }
  }

 private:
  float recall_of_selection() const {
    std::vector<std::int32_t> common;
    std::set_intersection(best_.begin(), best_.end(), selection_.selected.begin(), selection_.selected.end(),
                          std::back_inserter(common));
    return static_cast<float>(static_cast<double>(common.size()) / static_cast<double>(best_.size()));
  }

  // Relative error of the stored keys of the exact top set.
  void measure_keys(MatView<const float> stored, Samples* out) const {
    for (std::size_t i = 0; i < best_.size(); ++i) {
      const float* const exact = dense_.keys.data() + uz(best_[i]) * stored.cols;
      double error = 0;
      double norm = 0;
      for (std::size_t c = 0; c < stored.cols; ++c) {
        error += (stored.row(i)[c] - exact[c]) * static_cast<double>(stored.row(i)[c] - exact[c]);
        norm += static_cast<double>(exact[c]) * exact[c];
      }
      out->key_error.push_back(static_cast<float>(std::sqrt(error / norm)));
    }
  }

  // And what it does to their logits.
  void measure_logits(std::size_t h, const float* query, MatView<const float> stored, Samples* out) const {
    for (std::size_t i = 0; i < best_.size(); ++i)
      out->logit_error.push_back(std::abs(logit(query, stored.row(i)) - dense_.logits[h][uz(best_[i])]));
  }

  void measure_mass(std::size_t h, Samples* out) const {
    const double mass = mass_of(h, selection_.selected);
    const double oracle_mass = mass_of(h, best_);
    out->mass.push_back(static_cast<float>(mass));
    out->oracle_mass.push_back(static_cast<float>(oracle_mass));
    out->mass_ratio.push_back(static_cast<float>(mass / oracle_mass));
  }
  double mass_of(std::size_t h, const std::vector<std::int32_t>& rows) const {
    double mass = 0;
    for (const std::int32_t t : near_) mass += dense_.weights[h][uz(t)];
    for (const std::int32_t t : rows) mass += dense_.weights[h][uz(t)];
    return mass;
  }

  // The grid: exact or stored rows, the exact top set or the cache's own selection.
  void measure_outputs(std::size_t h, const float* query, const FloatRows& stored, const FloatRows& attended,
                       Samples* out) const {
    out->exact_oracle.push_back(error_of(h, exact_output(h, best_)));
    out->stored_oracle.push_back(error_of(h, stored_oracle_output(h, query, stored)));
    out->exact_selected.push_back(error_of(h, exact_output(h, selection_.selected)));
    Attend own(dense_width());
    for (std::size_t r = 0; r < attended.keys.rows; ++r)
      own.add(logit(query, attended.keys.row(r)), attended.values.row(r), dense_.largest[h]);
    out->stored_selected.push_back(error_of(h, own));
  }
  Attend exact_output(std::size_t h, const std::vector<std::int32_t>& rows) const {
    Attend attend(dense_width());
    for (const std::int32_t t : near_) add_exact(h, t, &attend);
    for (const std::int32_t t : rows) add_exact(h, t, &attend);
    return attend;
  }
  Attend stored_oracle_output(std::size_t h, const float* query, const FloatRows& stored) const {
    Attend attend(dense_width());
    for (const std::int32_t t : near_) add_exact(h, t, &attend);
    for (std::size_t i = 0; i < best_.size(); ++i)
      attend.add(logit(query, stored.keys.row(i)), stored.values.row(i), dense_.largest[h]);
    return attend;
  }
  void add_exact(std::size_t h, std::int32_t t, Attend* attend) const {
    attend->add(dense_.logits[h][uz(t)], dense_.values.data() + uz(t) * dense_width(), dense_.largest[h]);
  }
  float error_of(std::size_t h, const Attend& attend) const {
    return static_cast<float>(relative_distance(attend.output(), dense_.outputs[h]));
  }

  std::size_t dense_width() const { return uz(dense_.dim); }
  float logit(const float* query, const float* key) const {
    return 1.0F / std::sqrt(static_cast<float>(dense_.dim)) * dot(query, key, dense_width());
  }

  const DenseHead& dense_;
  RowSelection selection_;
  std::vector<std::int32_t> near_;
  std::vector<std::int32_t> best_;
};

// The group of one query head alone: with a selection per query head, the head is its own group.
DenseHead alone(const DenseHead& group, std::size_t h) {
  DenseHead own = group;
  own.logits = {group.logits[h]};
  own.weights = {group.weights[h]};
  own.outputs = {group.outputs[h]};
  own.largest = {group.largest[h]};
  return own;
}

// One view of a cache: a KV head, or one query head of it.
struct AskedView {
  int layer = 0;
  int view = 0;
  int kv_head = 0;
};

Status diagnose_view(SequenceCache& cache, const AskedView& at, MatView<const float> queries, const DenseHead& head,
                     RowSelection selection, int prompt, Samples* samples) {
  const HeadDiagnosis diagnosis(head, std::move(selection), prompt);
  const std::size_t rows = diagnosis.best().size();
  std::vector<float> keys(rows * queries.cols);
  std::vector<float> values(rows * queries.cols);
  KV_TRY(cache.read_far_rows(at.layer, at.kv_head, diagnosis.best(), MatView<float>(keys.data(), rows, queries.cols),
                             MatView<float>(values.data(), rows, queries.cols)));
  const HeadView& view = cache.views(at.layer)[uz(at.view)];
  const std::vector<float> view_keys = decoded(view.keys, view.rows, head.dim);
  const std::vector<float> view_values = decoded(view.values, view.rows, head.dim);
  const auto rows_of = [&](const std::vector<float>& floats, std::size_t count) {
    return MatView<const float>(floats.data(), count, queries.cols);
  };
  if (samples->layer_recall.size() <= uz(at.layer)) samples->layer_recall.resize(uz(at.layer) + 1);
  diagnosis.measure(queries, {rows_of(keys, rows), rows_of(values, rows)},
                    {rows_of(view_keys, uz(view.rows)), rows_of(view_values, uz(view.rows))}, samples,
                    &samples->layer_recall[uz(at.layer)]);
  return {};
}

// Asks one cache with the dense run's queries.
Status diagnose_layer(SequenceCache& cache, int layer, int prompt, MatView<const float> q, std::span<const DenseHead> dense,
                      Samples* samples) {
  const int views = static_cast<int>(cache.views(layer).size());
  const int per_view = static_cast<int>(q.rows) / views;
  for (int v = 0; v < views; ++v) {
    const int kv_head = v * static_cast<int>(dense.size()) / views;
    const DenseHead& group = dense[uz(kv_head)];
    const MatView<const float> queries = q.row_range(uz(v * per_view), uz((v + 1) * per_view));
    RowSelection selection = cache.selection(layer, v);
    if (selection.candidates.empty()) return {};
    const bool shared = queries.rows == group.logits.size();
    const DenseHead own = shared ? DenseHead() : alone(group, uz(v * per_view) % group.logits.size());
    KV_TRY(diagnose_view(cache, {layer, v, kv_head}, queries, shared ? group : own, std::move(selection), prompt, samples));
  }
  return {};
}

double mean_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += x;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

DiagnosisRow summarized(const std::string& spec, const Samples& s) {
  DiagnosisRow row;
  row.spec = spec;
  row.recall = spread_of(s.recall);
  row.mass = spread_of(s.mass);
  row.oracle_mass = spread_of(s.oracle_mass);
  row.mass_ratio = spread_of(s.mass_ratio);
  row.exact_oracle = spread_of(s.exact_oracle);
  row.stored_oracle = spread_of(s.stored_oracle);
  row.exact_selected = spread_of(s.exact_selected);
  row.stored_selected = spread_of(s.stored_selected);
  row.key_error = spread_of(s.key_error);
  row.logit_error = spread_of(s.logit_error);
  std::vector<float> sorted = s.key_error;
  std::sort(sorted.begin(), sorted.end());
  row.key_error_p99 = sorted[sorted.size() * 99 / 100];
  for (const std::vector<float>& layer : s.layer_recall) {
    if (layer.empty()) continue;
    row.layer_recall.push_back(mean_of(layer));
    ++row.layers;
  }
  return row;
}

// The dense run, and beside it the caches under test: what it asks and adds, they are asked and given. [0] is the dense run.
class SelectionDiagnosis {
 public:
  SelectionDiagnosis(Engine& engine, std::span<const CacheSpec> specs, std::vector<Sequence> sequences, int prompt)
      : engine_(engine), specs_(specs), sequences_(std::move(sequences)), prompt_(prompt), samples_(specs.size()) {}

  Status step(Token token) {
    const auto observe = [this](int layer, MatView<const float> q, MatView<const float> k, MatView<const float> v) {
      return ask(layer, q, k, v);
    };
    KV_TRY(engine_.decode_observed(sequences_[0], token, observe));
    for (std::size_t c = 1; c < sequences_.size(); ++c) sequences_[c].cache.finish_step();
    return {};
  }

  std::vector<DiagnosisRow> rows() const {
    std::vector<DiagnosisRow> out;
    for (std::size_t c = 1; c < specs_.size(); ++c) {
      if (!samples_[c].recall.empty()) out.push_back(summarized(specs_[c].canonical, samples_[c]));
    }
    return out;
  }

 private:
  Status ask(int layer, MatView<const float> q, MatView<const float> k, MatView<const float> v) {
    const std::vector<DenseHead> heads = dense_heads(layer, q, k.rows);
    for (std::size_t c = 1; c < sequences_.size(); ++c) {
      SequenceCache& cache = sequences_[c].cache;
      KV_TRY(cache.append_row(layer, k, v));
      KV_TRY(cache.before_attention(layer, q));
      KV_TRY(diagnose_layer(cache, layer, prompt_, q, heads, &samples_[c]));
      KV_TRY(cache.after_attention(layer, {}));
    }
    return {};
  }
  std::vector<DenseHead> dense_heads(int layer, MatView<const float> q, std::size_t kv_heads) {
    std::vector<DenseHead> heads;
    const std::size_t group = q.rows / kv_heads;
    for (std::size_t h = 0; h < kv_heads; ++h)
      heads.push_back(dense_head(sequences_[0].cache.views(layer)[h], q.row_range(h * group, (h + 1) * group)));
    return heads;
  }

  Engine& engine_;
  std::span<const CacheSpec> specs_;
  std::vector<Sequence> sequences_;
  int prompt_;
  std::vector<Samples> samples_;
};

Status check_request(const FidelityRequest& request, std::size_t text_tokens) {
  const bool fits = request.tokens >= 1 && request.context >= std::int64_t{request.tokens} + 2;
  if (fits && text_tokens >= static_cast<std::size_t>(request.context)) return {};
  return bad_input(fmt::format("the text has {} and {} of the first {} are to be decoded; give a longer text or smaller numbers",
                               counted(text_tokens, "token"), request.tokens, request.context));
}

nlohmann::json spread_json(const Spread& s) { return {{"mean", s.mean}, {"p5", s.p5}, {"p95", s.p95}}; }

}  // namespace

Spread spread_of(std::vector<float> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) { return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))]; };
  return {mean_of(values), at(0.05), at(0.95)};
}

Result<DiagnosisReport> diagnose_selection(Engine& engine, std::span<const Token> text, const FidelityRequest& request,
                                           std::span<const CacheSpec> specs, const std::function<void(double share)>& progress) {
  KV_TRY(check_request(request, text.size()));
  const auto show = [&](double share) {
    if (progress) progress(share);
  };
  KV_ASSIGN(const CacheSpec full, parse_spec("full"));
  std::vector<CacheSpec> all = {full};
  std::ranges::copy_if(specs, std::back_inserter(all), [](const CacheSpec& spec) { return spec.offload.has_value(); });
  const int prompt = request.context - request.tokens;
  KV_ASSIGN(std::vector<Sequence> sequences,
            engine.prefill(text.first(uz(prompt)), all, [&](double share) { show(0.5 * share); }));
  SelectionDiagnosis diagnosis(engine, all, std::move(sequences), prompt);
  for (int step = 0; step < request.tokens; ++step) {
    KV_TRY(diagnosis.step(text[uz(prompt + step)]));
    show(0.5 + 0.5 * (step + 1) / request.tokens);
  }
  return DiagnosisReport{.prefix_tokens = prompt, .steps = request.tokens, .rows = diagnosis.rows()};
}

nlohmann::json diagnosis_json(const DiagnosisReport& report) {
  nlohmann::json out = {{"prefix_tokens", report.prefix_tokens}, {"steps", report.steps}, {"rows", nlohmann::json::array()}};
  for (const DiagnosisRow& r : report.rows) {
    out["rows"].push_back({{"spec", r.spec},
                           {"selecting_layers", r.layers},
                           {"recall", spread_json(r.recall)},
                           {"mass", spread_json(r.mass)},
                           {"oracle_mass", spread_json(r.oracle_mass)},
                           {"mass_ratio", spread_json(r.mass_ratio)},
                           {"output_error",
                            {{"exact_oracle", spread_json(r.exact_oracle)},
                             {"stored_oracle", spread_json(r.stored_oracle)},
                             {"exact_selected", spread_json(r.exact_selected)},
                             {"stored_selected", spread_json(r.stored_selected)}}},
                           {"key_error", spread_json(r.key_error)},
                           {"key_error_p99", r.key_error_p99},
                           {"logit_error", spread_json(r.logit_error)},
                           {"layer_recall", r.layer_recall}});
  }
  return out;
}

std::string diagnosis_table(const DiagnosisReport& report) {
  std::string out = fmt::format(
      "\n{} after a prefix of {}; output error of a head, mean: rows {{exact | stored}} x selection {{exact top | "
      "own}}\n\n{:<28} {:>7} "
      "{:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}\n",
      counted(report.steps, "step"), report.prefix_tokens, "cache", "recall", "mass", "oracle", "ex/top", "stored/top", "ex/own",
      "stored/own", "key err", "p99");
  for (const DiagnosisRow& r : report.rows) {
    out += fmt::format("{:<28.28} {:>7.3f} {:>7.4f} {:>7.4f} {:>9.4f} {:>10.4f} {:>9.4f} {:>10.4f} {:>8.4f} {:>8.4f}\n", r.spec,
                       r.recall.mean, r.mass.mean, r.oracle_mass.mean, r.exact_oracle.mean, r.stored_oracle.mean,
                       r.exact_selected.mean, r.stored_selected.mean, r.key_error.mean, r.key_error_p99);
  }
  return out;
}

}  // namespace kvartet
