// The diagnosis for machines and for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/diagnose.h"
#include "core/counted.h"

namespace kvartet {
namespace {

nlohmann::json spread_json(const Spread& s) {
  nlohmann::json out = {{"mean", s.mean}, {"p5", s.p5}, {"p95", s.p95}};
  if (s.by_text.texts > 1)
    out["by_text"] = {{"texts", s.by_text.texts}, {"mean", s.by_text.mean}, {"half_width", s.by_text.half_width}};
  return out;
}

// Only of layers that select: the others would be zeros.
nlohmann::json by_layer_json(const std::vector<Spread>& by_layer, const std::vector<int>& layers) {
  nlohmann::json out = nlohmann::json::array();
  for (const int layer : layers) {
    nlohmann::json one = spread_json(by_layer[static_cast<std::size_t>(layer)]);
    one["layer"] = layer;
    out.push_back(std::move(one));
  }
  return out;
}

nlohmann::json layer_figure_json(const LayerFigure& figure, const std::vector<int>& layers) {
  nlohmann::json out = spread_json(figure.all);
  out["by_layer"] = by_layer_json(figure.by_layer, layers);
  return out;
}

nlohmann::json figure_json(const GridFigure& figure, const DiagnosisReport& report, const std::vector<int>& layers) {
  nlohmann::json out = spread_json(figure.all);
  out["by_layer"] = by_layer_json(figure.by_layer, layers);
  out["by_head"] = nlohmann::json::array();
  for (const Spread& head : figure.by_head) out["by_head"].push_back(spread_json(head));
  out["map"] = nlohmann::json::array();  // [layers][heads]
  for (int l = 0; l < report.layers; ++l) {
    nlohmann::json line = nlohmann::json::array();
    for (int h = 0; h < report.heads; ++h) {
      const double x = figure.map[static_cast<std::size_t>(l * report.heads + h)];
      line.push_back(std::isnan(x) ? nlohmann::json() : nlohmann::json(x));
    }
    out["map"].push_back(std::move(line));
  }
  return out;
}

nlohmann::json row_json(const DiagnosisRow& r, const DiagnosisReport& report) {
  const auto figure = [&](const GridFigure& f) { return figure_json(f, report, r.layers); };
  nlohmann::json out = {{"spec", r.spec},
                        {"selecting_layers", r.layers},
                        {"selected_rows", r.selected_rows},
                        {"kept_rows", r.kept_rows},
                        {"recall", figure(r.recall)},
                        {"own_recall", spread_json(r.own_recall)},
                        {"mass", figure(r.mass)},
                        {"mass_parts", {{"kept", r.kept_mass}, {"selected", r.selected_mass}, {"generated", r.generated_mass}}},
                        {"oracle_mass", spread_json(r.oracle_mass)},
                        {"own_mass", spread_json(r.own_mass)},
                        {"aggregation_loss", spread_json(r.aggregation_loss)},
                        {"mass_ratio", figure(r.mass_ratio)},
                        {"output_error",
                         {{"exact_oracle", spread_json(r.exact_oracle)},
                          {"stored_oracle", spread_json(r.stored_oracle)},
                          {"exact_selected", spread_json(r.exact_selected)},
                          {"stored_selected", figure(r.output_error)}}},
                        {"projected_error",
                         {{"exact_oracle", layer_figure_json(r.projected_exact_oracle, r.layers)},
                          {"stored_oracle", layer_figure_json(r.projected_stored_oracle, r.layers)},
                          {"exact_selected", layer_figure_json(r.projected_exact_selected, r.layers)},
                          {"stored_selected", layer_figure_json(r.projected_error, r.layers)}}},
                        {"key_error", spread_json(r.key_error)},
                        {"key_error_p99", r.key_error_p99},
                        {"key_error_max", r.key_error_max},
                        {"value_error", spread_json(r.value_error)},
                        {"value_error_p99", r.value_error_p99},
                        {"value_error_max", r.value_error_max},
                        {"logit_error", spread_json(r.logit_error)},
                        {"logit_error_max", r.logit_error_max},
                        {"reuse", spread_json(r.reuse)},
                        {"bytes_per_step", r.bytes_per_step}};
  if (!r.sweep_of.empty()) {
    out["sweep_of"] = r.sweep_of;
    out["budget_share"] = r.budget_share;
  }
  if (!r.gold_recall.map.empty()) {
    out["gold_recall"] = figure(r.gold_recall);
    out["gold_by_one_head"] = spread_json(r.gold_by_one);
    out["gold_by_half_of_the_heads"] = spread_json(r.gold_by_half);
  }
  return out;
}

std::string share_text(double share) { return fmt::format("1/{:.0f}", 1 / share); }

// Specs are long and differ at their ends: in the tables a number stands for each.
std::vector<std::string> row_names(const DiagnosisReport& report) {
  std::vector<std::string> names;
  int number = 0;
  for (const DiagnosisRow& r : report.rows) {
    names.push_back(r.sweep_of.empty() ? fmt::format("{} {}", ++number, r.spec.substr(0, r.spec.find(':')))
                                       : fmt::format("  at {}", share_text(r.budget_share)));
  }
  return names;
}

std::string legend_text(const DiagnosisReport& report) {
  std::string out;
  int number = 0;
  for (const DiagnosisRow& r : report.rows)
    if (r.sweep_of.empty()) out += fmt::format("{} = {}\n", ++number, r.spec);
  return out;
}

std::string row_text(const std::string& name, const DiagnosisRow& r, bool gold) {
  std::string out = fmt::format(
      "{:<16.16} {:>5} {:>7.3f} {:>7.4f} {:>7.4f} {:>7.4f} {:>9.4f} {:>10.4f} {:>9.4f} {:>10.4f} {:>8.4f} {:>8.4f} {:>6.3f}",
      name, r.selected_rows, r.recall.all.mean, r.mass.all.mean, r.oracle_mass.mean, r.aggregation_loss.mean, r.exact_oracle.mean,
      r.stored_oracle.mean, r.exact_selected.mean, r.output_error.all.mean, r.key_error.mean, r.key_error_p99, r.reuse.mean);
  if (gold) out += fmt::format(" {:>6.3f} {:>6.3f} {:>6.3f}", r.gold_recall.all.mean, r.gold_by_one.mean, r.gold_by_half.mean);
  return out + "\n";
}

// The layers and heads where most is lost, and the spread.
std::string worst_text(const std::string& name, const DiagnosisRow& r, const DiagnosisReport& report) {
  double least = 2;
  int layer = 0;
  int head = 0;
  for (std::size_t i = 0; i < r.mass_ratio.map.size(); ++i) {
    if (std::isnan(r.mass_ratio.map[i]) || r.mass_ratio.map[i] >= least) continue;
    least = r.mass_ratio.map[i];
    layer = static_cast<int>(i) / report.heads;
    head = static_cast<int>(i) % report.heads;
  }
  return fmt::format(
      "{:<16.16} recall {:.3f} to {:.3f}, mass ratio {:.4f} to {:.4f}, output error {:.4f} to {:.4f}; least mass ratio "
      "{:.4f} in layer {}, head {}\n",
      name, r.recall.all.p5, r.recall.all.p95, r.mass_ratio.all.p5, r.mass_ratio.all.p95, r.output_error.all.p5,
      r.output_error.all.p95, least, layer, head);
}

// Errors behind the output matrices, with their spread, and where the largest is.
std::string projected_text(const DiagnosisReport& report, const std::vector<std::string>& names) {
  std::string out = fmt::format(
      "\nerror of a layer's attention output behind its output matrix, mean (5th to 95th percentile over steps and layers)\n\n"
      "{:<16} {:>24} {:>24} {:>24} {:>24}  largest\n",
      "cache", "ex/top", "stored/top", "ex/own", "stored/own");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const DiagnosisRow& r = report.rows[i];
    out += fmt::format("{:<16.16}", names[i]);
    for (const LayerFigure* f :
         {&r.projected_exact_oracle, &r.projected_stored_oracle, &r.projected_exact_selected, &r.projected_error})
      out += fmt::format(" {:>8.4f} ({:.4f}-{:.4f})", f->all.mean, f->all.p5, f->all.p95);
    const auto worst = std::max_element(r.projected_error.by_layer.begin(), r.projected_error.by_layer.end(),
                                        [](const Spread& a, const Spread& b) { return a.mean < b.mean; });
    out += fmt::format("  {:.4f} in layer {}\n", worst->mean, worst - r.projected_error.by_layer.begin());
  }
  return out;
}

// The figures that decide, each with its interval over texts.
std::string intervals_text(const DiagnosisReport& report, const std::vector<std::string>& names) {
  const bool gold = report.gold_tokens > 0;
  std::string out =
      fmt::format("\nmean of {}, and half the width of its 95 % interval\n\n{:<16}", counted(report.texts, "text"), "cache");
  for (const char* figure : {"recall", "mass", "mass ratio", "ex/top", "stored/top", "ex/own", "stored/own", "behind Wo"})
    out += fmt::format(" {:>15}", figure);
  out += gold ? fmt::format(" {:>15}\n", "gold") : "\n";
  for (std::size_t i = 0; i < names.size(); ++i) {
    const DiagnosisRow& r = report.rows[i];
    std::vector<const Spread*> figures = {&r.recall.all,    &r.mass.all,       &r.mass_ratio.all,   &r.exact_oracle,
                                          &r.stored_oracle, &r.exact_selected, &r.output_error.all, &r.projected_error.all};
    if (gold) figures.push_back(&r.gold_recall.all);
    out += fmt::format("{:<16.16}", names[i]);
    for (const Spread* f : figures) out += fmt::format("  {:>6.3f} ±{:>6.3f}", f->by_text.mean, f->by_text.half_width);
    out += "\n";
  }
  return out;
}

}  // namespace

nlohmann::json diagnosis_json(const DiagnosisReport& report) {
  nlohmann::json out = {{"texts", report.texts},          {"prefix_tokens", report.prefix_tokens},
                        {"steps", report.steps},          {"layers", report.layers},
                        {"heads", report.heads},          {"gold_tokens", report.gold_tokens},
                        {"rows", nlohmann::json::array()}};
  for (const DiagnosisRow& r : report.rows) out["rows"].push_back(row_json(r, report));
  return out;
}

std::string diagnosis_table(const DiagnosisReport& report) {
  const bool gold = report.gold_tokens > 0;
  std::string out = fmt::format(
      "\n{} after {}; output error of a head, mean: rows {{exact | stored}} x selection {{exact top | own}}\n"
      "rows: selected per step; aggr: mass lost because query heads share; reuse: of a selection, selected before\n",
      counted(report.steps, "step"),
      report.texts > 1 ? fmt::format("prefixes of up to {} in {}", report.prefix_tokens, counted(report.texts, "text"))
                       : fmt::format("a prefix of {}", report.prefix_tokens));
  if (gold) {
    out += fmt::format("gold: share of {} that a head attends to, that one head of a layer does, that half of them do\n",
                       counted(report.gold_tokens, "gold token"));
  }
  const std::vector<std::string> names = row_names(report);
  out += '\n';  // g++ 12 warns of a literal + a string where nothing is wrong
  out += legend_text(report);
  out += fmt::format("\n{:<16} {:>5} {:>7} {:>7} {:>7} {:>7} {:>9} {:>10} {:>9} {:>10} {:>8} {:>8} {:>6}{}\n", "cache", "rows",
                     "recall", "mass", "oracle", "aggr", "ex/top", "stored/top", "ex/own", "stored/own", "key err", "p99",
                     "reuse", gold ? "   gold    one   half" : "");
  for (std::size_t i = 0; i < names.size(); ++i) out += row_text(names[i], report.rows[i], gold);
  out += "\n5th to 95th percentile over steps, layers and heads (by layer and head with --json)\n\n";
  for (std::size_t i = 0; i < names.size(); ++i)
    if (report.rows[i].sweep_of.empty()) out += worst_text(names[i], report.rows[i], report);
  out += projected_text(report, names);
  if (report.texts > 1) out += intervals_text(report, names);
  return out;
}

}  // namespace kvartet
