#include "bench/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "bench/diagnose_view.h"
#include "bench/projected_errors.h"
#include "core/check.h"
#include "core/counted.h"
#include "core/uz.h"

namespace kvartet {
namespace {

// One cache under test, and all that was seen of it.
struct Subject {
  CacheSpec spec = {};
  std::string sweep_of = {};
  double budget_share = 0;
  int selected_rows = 0;
  int kept_rows = 0;
  SampleGrid recall, mass, mass_ratio, output_error, gold_recall, own_recall, oracle_mass, own_mass, aggregation_loss;
  SampleGrid kept_mass, selected_mass, generated_mass;
  SampleGrid exact_oracle, stored_oracle, exact_selected, logit_error, logit_error_max;
  // Head 0 stands for a layer, or the first of a view's heads.
  SampleGrid key_error, value_error, gold_by_one, gold_by_half, reuse;
  SampleGrid projected_exact_oracle, projected_stored_oracle, projected_exact_selected, projected_error;
  double bytes = 0;
  std::map<std::pair<int, int>, std::vector<std::int32_t>> last = {};  // per layer and view: selected in the step before

  void end_text() {
    last.clear();
    for (SampleGrid* grid : {&recall,
                             &mass,
                             &mass_ratio,
                             &output_error,
                             &gold_recall,
                             &own_recall,
                             &oracle_mass,
                             &own_mass,
                             &aggregation_loss,
                             &kept_mass,
                             &selected_mass,
                             &generated_mass,
                             &exact_oracle,
                             &stored_oracle,
                             &exact_selected,
                             &logit_error,
                             &logit_error_max,
                             &key_error,
                             &value_error,
                             &gold_by_one,
                             &gold_by_half,
                             &reuse,
                             &projected_exact_oracle,
                             &projected_stored_oracle,
                             &projected_exact_selected,
                             &projected_error})
      grid->end_text();
  }
};

// Asks one cache, at one layer of one step, what the dense run was asked, and compares.
class LayerDiagnosis {
 public:
  LayerDiagnosis(Engine& engine, int layer, int prompt, std::span<const std::int32_t> gold, MatView<const float> queries,
                 std::span<const DenseHead> dense)
      : engine_(engine), layer_(layer), prompt_(prompt), gold_(gold), queries_(queries), dense_(dense) {
    for (const DenseHead& head : dense) exact_outputs_.insert(exact_outputs_.end(), head.outputs.begin(), head.outputs.end());
  }

  Status add_to(SequenceCache& cache, Subject* subject) const {
    const std::span<const HeadView> views = cache.views(layer_);
    std::vector<int> heads_with(gold_.size(), 0);  // per gold position
    std::vector<OutputGrid> outputs;               // per query head
    for (int v = 0; v < std::ssize(views); ++v) {
      RowSelection selection = cache.selection(layer_, v);
      if (selection.candidates.empty()) return {};
      const int per_view = static_cast<int>(queries_.rows) / static_cast<int>(views.size());
      add_gold(selection, v * per_view, per_view, &heads_with, subject);
      KV_TRY(add_view(cache, v, per_view, views[uz(v)], selection, &outputs, subject));
      add_reuse(v, v * per_view, std::move(selection.selected), subject);
    }
    if (!gold_.empty()) add_gold_of_layer(heads_with, subject);
    return add_projected(outputs, subject);
  }

 private:
  Status add_view(SequenceCache& cache, int v, int per_view, const HeadView& view, const RowSelection& selection,
                  std::vector<OutputGrid>* outputs, Subject* subject) const {
    const int first_head = v * per_view;
    const int group = static_cast<int>(queries_.rows) / static_cast<int>(dense_.size());
    const int kv_head = first_head / group;
    // With a selection per query head, the head is its own group.
    const bool shared = per_view == group;
    const std::optional<DenseHead> own =
        shared ? std::nullopt : std::optional(dense_[uz(kv_head)].only_query(uz(first_head % group)));
    const DenseHead& head = shared ? dense_[uz(kv_head)] : *own;
    const std::vector<std::int32_t> best = exact_top(head, selection);
    const std::size_t dim = queries_.cols;
    std::vector<float> keys(best.size() * dim);
    std::vector<float> values(best.size() * dim);
    const MatView<float> stored_keys(keys.data(), best.size(), dim);
    const MatView<float> stored_values(values.data(), best.size(), dim);
    if (selection.far && !best.empty()) {
      KV_TRY(cache.read_far_rows(layer_, kv_head, best, stored_keys, stored_values));
    } else {
      for (std::size_t i = 0; i < best.size(); ++i) {
        std::copy_n(head.keys.data() + uz(best[i]) * dim, dim, stored_keys.row(i));
        std::copy_n(head.values.data() + uz(best[i]) * dim, dim, stored_values.row(i));
      }
    }
    const std::vector<float> attended_keys = decoded_rows(view.keys, view.rows, head.dim);
    const std::vector<float> attended_values = decoded_rows(view.values, view.rows, head.dim);
    const ViewRows rows = {.queries = queries_.row_range(uz(first_head), uz(first_head + per_view)),
                           .stored_keys = stored_keys,
                           .stored_values = stored_values,
                           .attended_keys = {attended_keys.data(), uz(view.rows), dim},
                           .attended_values = {attended_values.data(), uz(view.rows), dim}};
    const bool went_far = !selection.candidates.empty() && selection.candidates.back() >= prompt_;  // generated rows, too
    const int near_from = !selection.far ? head.rows : went_far ? selection.candidates.back() + 1 : prompt_;
    ViewFigures figures = measure_view(head, selection, best, near_from, rows);
    add_figures(figures, first_head, subject);
    for (QueryFigures& query : figures.queries) outputs->push_back(std::move(query.outputs));
    if (subject->selected_rows == 0) {
      subject->selected_rows = static_cast<int>(selection.selected.size());
      subject->kept_rows = static_cast<int>(selection.kept.size());
    }
    return {};
  }

  void add_figures(const ViewFigures& figures, int first_head, Subject* s) const {
    for (const float x : figures.key_error) s->key_error.add(layer_, first_head, x);
    for (const float x : figures.value_error) s->value_error.add(layer_, first_head, x);
    for (std::size_t i = 0; i < figures.queries.size(); ++i) {
      const QueryFigures& q = figures.queries[i];
      const int head = first_head + static_cast<int>(i);
      s->recall.add(layer_, head, figures.recall);
      s->own_recall.add(layer_, head, q.own_recall);
      s->mass.add(layer_, head, q.mass());
      s->kept_mass.add(layer_, head, q.kept_mass);
      s->selected_mass.add(layer_, head, q.selected_mass);
      s->generated_mass.add(layer_, head, q.generated_mass);
      s->oracle_mass.add(layer_, head, q.oracle_mass);
      s->own_mass.add(layer_, head, q.own_mass);
      s->aggregation_loss.add(layer_, head, q.own_mass - q.oracle_mass);
      s->mass_ratio.add(layer_, head, q.mass() / q.oracle_mass);
      s->exact_oracle.add(layer_, head, q.exact_oracle);
      s->stored_oracle.add(layer_, head, q.stored_oracle);
      s->exact_selected.add(layer_, head, q.exact_selected);
      s->output_error.add(layer_, head, q.stored_selected);
      s->logit_error.add(layer_, head, q.logit_error);
      s->logit_error_max.add(layer_, head, q.logit_error_max);
    }
  }

  Status add_projected(std::span<const OutputGrid> outputs, Subject* s) const {
    KV_ASSIGN(const ProjectedErrors errors, projected_errors(engine_, layer_, exact_outputs_, outputs));
    s->projected_exact_oracle.add(layer_, 0, errors.exact_oracle);
    s->projected_stored_oracle.add(layer_, 0, errors.stored_oracle);
    s->projected_exact_selected.add(layer_, 0, errors.exact_selected);
    s->projected_error.add(layer_, 0, errors.stored_selected);
    return {};
  }

  // Which gold positions a view attends to.
  void add_gold(const RowSelection& selection, int first_head, int per_view, std::vector<int>* heads_with, Subject* s) const {
    if (gold_.empty()) return;
    double attended = 0;
    for (std::size_t i = 0; i < gold_.size(); ++i) {
      const bool seen = std::binary_search(selection.kept.begin(), selection.kept.end(), gold_[i]) ||
                        std::binary_search(selection.selected.begin(), selection.selected.end(), gold_[i]);
      attended += seen ? 1 : 0;
      (*heads_with)[i] += seen ? per_view : 0;
    }
    for (int h = 0; h < per_view; ++h) s->gold_recall.add(layer_, first_head + h, attended / static_cast<double>(gold_.size()));
  }

  void add_gold_of_layer(const std::vector<int>& heads_with, Subject* s) const {
    const auto share = [&](int least) {
      const auto enough = std::count_if(heads_with.begin(), heads_with.end(), [&](int heads) { return heads >= least; });
      return static_cast<double>(enough) / static_cast<double>(heads_with.size());
    };
    s->gold_by_one.add(layer_, 0, share(1));
    s->gold_by_half.add(layer_, 0, share((static_cast<int>(queries_.rows) + 1) / 2));
  }

  void add_reuse(int view, int first_head, std::vector<std::int32_t> selected, Subject* s) const {
    const auto before = s->last.find({layer_, view});
    if (before != s->last.end()) s->reuse.add(layer_, first_head, share_found(before->second, selected));
    s->last[{layer_, view}] = std::move(selected);
  }

  Engine& engine_;
  int layer_;
  int prompt_;
  std::span<const std::int32_t> gold_;
  MatView<const float> queries_;
  std::span<const DenseHead> dense_;
  std::vector<std::vector<double>> exact_outputs_;  // [heads][head_dim]
};

int most_heads(const ModelShape& shape) {
  int most = 0;
  for (const LayerShape& layer : shape.layers) most = std::max(most, layer.heads);
  return most;
}

GridFigure figure_of(const SampleGrid& samples, int layers, int heads) {
  GridFigure figure;
  if (samples.empty()) return figure;
  figure.all = samples.all();
  for (int l = 0; l < layers; ++l) figure.by_layer.push_back(samples.of_layer(l));
  for (int h = 0; h < heads; ++h) figure.by_head.push_back(samples.of_head(h));
  figure.map = samples.means(layers, heads);
  return figure;
}

LayerFigure layer_figure_of(const SampleGrid& samples, int layers) {
  LayerFigure figure{.all = samples.all(), .by_layer = {}};
  for (int l = 0; l < layers; ++l) figure.by_layer.push_back(samples.of_layer(l));
  return figure;
}

DiagnosisRow summarized(const Subject& s, const DiagnosisReport& report) {
  const auto figure = [&](const SampleGrid& samples) { return figure_of(samples, report.layers, report.heads); };
  DiagnosisRow row;
  row.spec = s.spec.canonical;
  row.sweep_of = s.sweep_of;
  row.budget_share = s.budget_share;
  for (int l = 0; l < report.layers; ++l)
    if (s.recall.has_layer(l)) row.layers.push_back(l);
  row.selected_rows = s.selected_rows;
  row.kept_rows = s.kept_rows;
  row.recall = figure(s.recall);
  row.mass = figure(s.mass);
  row.mass_ratio = figure(s.mass_ratio);
  row.output_error = figure(s.output_error);
  row.gold_recall = figure(s.gold_recall);
  row.own_recall = s.own_recall.all();
  row.oracle_mass = s.oracle_mass.all();
  row.own_mass = s.own_mass.all();
  row.aggregation_loss = s.aggregation_loss.all();
  row.kept_mass = s.kept_mass.all().mean;
  row.selected_mass = s.selected_mass.all().mean;
  row.generated_mass = s.generated_mass.all().mean;
  row.exact_oracle = s.exact_oracle.all();
  row.stored_oracle = s.stored_oracle.all();
  row.exact_selected = s.exact_selected.all();
  row.projected_exact_oracle = layer_figure_of(s.projected_exact_oracle, report.layers);
  row.projected_stored_oracle = layer_figure_of(s.projected_stored_oracle, report.layers);
  row.projected_exact_selected = layer_figure_of(s.projected_exact_selected, report.layers);
  row.projected_error = layer_figure_of(s.projected_error, report.layers);
  row.key_error = s.key_error.all();
  row.key_error_p99 = s.key_error.quantile(0.99);
  row.key_error_max = s.key_error.quantile(1);
  row.value_error = s.value_error.all();
  row.value_error_p99 = s.value_error.quantile(0.99);
  row.value_error_max = s.value_error.quantile(1);
  row.logit_error = s.logit_error.all();
  row.logit_error_max = s.logit_error_max.quantile(1);
  row.gold_by_one = s.gold_by_one.all();
  row.gold_by_half = s.gold_by_half.all();
  row.reuse = s.reuse.all();
  row.bytes_per_step = s.bytes / report.steps;
  return row;
}

std::vector<Subject> subjects_of(std::span<const CacheSpec> specs, const DiagnosisOptions& options) {
  std::vector<Subject> subjects;
  for (const CacheSpec& spec : specs) {
    if (!spec.offload) continue;
    subjects.emplace_back().spec = spec;
    if (!options.sweep) continue;
    for (SweptSpec& swept : budget_sweep(spec)) {
      Subject& subject = subjects.emplace_back();
      subject.spec = std::move(swept.spec);
      subject.sweep_of = spec.canonical;
      subject.budget_share = swept.share;
    }
  }
  return subjects;
}

// The dense run decodes; at each layer every cache gets its row and is asked its question.
Status decode_step(Engine& engine, Token token, int prompt, std::span<const std::int32_t> gold, std::span<Sequence> sequences,
                   std::span<Subject> subjects) {
  Sequence& dense = sequences[0];
  KV_TRY(engine.decode_observed(dense, token, [&](const LayerQuestion& question) -> Status {
    const std::vector<DenseHead> heads = dense_heads(dense.cache, question.layer, question.q);
    const LayerDiagnosis diagnosis(engine, question.layer, prompt, gold, question.q, heads);
    for (std::size_t c = 0; c < subjects.size(); ++c) {
      SequenceCache& cache = sequences[c + 1].cache;
      KV_TRY(cache.append_row(question.layer, question.k, question.v));
      const std::uint64_t fetched = cache.traffic().bytes_fetched;
      KV_TRY(cache.before_attention(question.layer, question.q, question.guessed_q));
      subjects[c].bytes += static_cast<double>(cache.traffic().bytes_fetched - fetched);
      KV_TRY(diagnosis.add_to(cache, &subjects[c]));
      KV_TRY(cache.after_attention(question.layer, {}));
    }
    return {};
  }));
  for (Sequence& sequence : sequences.subspan(1)) sequence.cache.finish_step();
  return {};
}

Status diagnose_text(Engine& engine, const ComparedText& text, std::span<Subject> subjects, const Engine::Progress& progress) {
  KV_ASSIGN(const CacheSpec full, parse_spec("full"));
  std::vector<CacheSpec> all = {full};
  for (const Subject& subject : subjects) all.push_back(subject.spec);
  KV_ASSIGN(std::vector<Sequence> sequences, engine.prefill(text.prefix(), all, [&](double share) { progress(0.5 * share); }));
  const auto prompt = static_cast<int>(text.prefix().size());
  for (int step = 0; step < text.compared; ++step) {
    KV_TRY(decode_step(engine, text.tokens[uz(prompt + step)], prompt, text.gold, sequences, subjects));
    progress(0.5 + 0.5 * (step + 1) / text.compared);
  }
  for (Subject& subject : subjects) subject.end_text();
  return {};
}

// A cache that takes every row at its own budget has no row here: those of its sweep stand for themselves then.
void free_orphans(std::vector<DiagnosisRow>* rows) {
  std::set<std::string> bases;
  for (const DiagnosisRow& row : *rows)
    if (row.sweep_of.empty()) bases.insert(row.spec);
  for (DiagnosisRow& row : *rows)
    if (!bases.contains(row.sweep_of)) row.sweep_of.clear();
}

}  // namespace

std::vector<SweptSpec> budget_sweep(const CacheSpec& spec) {
  std::vector<SweptSpec> swept;
  if (!spec.offload) return swept;
  const std::size_t begin = spec.canonical.find("budget=") + std::string_view("budget=").size();
  const std::size_t end = std::min(spec.canonical.find(',', begin), spec.canonical.size());
  for (int power = 10; power >= 2; --power) {
    const double share = 1.0 / (1 << power);
    std::string text = spec.canonical;
    text.replace(begin, end - begin, fmt::format("{}", share));
    Result<CacheSpec> at = parse_spec(text);
    KV_CHECK(at.ok());
    swept.push_back({std::move(at).value(), share});
  }
  return swept;
}

Result<DiagnosisReport> diagnose_selection(Engine& engine, std::span<const ComparedText> texts, std::span<const CacheSpec> specs,
                                           const DiagnosisOptions& options, const std::function<void(double share)>& progress) {
  const ModelShape& shape = engine.shape();
  DiagnosisReport report{
      .texts = static_cast<int>(texts.size()), .layers = shape.layer_count(), .heads = most_heads(shape), .rows = {}};
  std::vector<Subject> subjects = subjects_of(specs, options);
  for (std::size_t t = 0; t < texts.size(); ++t) {
    const auto show = [&](double share) {
      if (progress) progress((static_cast<double>(t) + share) / static_cast<double>(texts.size()));
    };
    KV_TRY(diagnose_text(engine, texts[t], subjects, show));
    report.prefix_tokens = std::max(report.prefix_tokens, static_cast<int>(texts[t].prefix().size()));
    report.steps += texts[t].compared;
    report.gold_tokens += static_cast<int>(texts[t].gold.size());
  }
  for (const Subject& subject : subjects) {
    if (!subject.recall.empty()) report.rows.push_back(summarized(subject, report));
  }
  free_orphans(&report.rows);
  return report;
}

}  // namespace kvartet
