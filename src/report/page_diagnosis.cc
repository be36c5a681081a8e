// The section on caches that select rows: what their indexes find, where, and at which budget (offloading.md 10).
#include <algorithm>
#include <cmath>

#include "core/counted.h"
#include "report/diagnosis.h"
#include "report/heat_map.h"
#include "report/page_parts.h"

namespace kvartet {
namespace {

std::string with_range(const DiagnosedFigure& f, int decimals) {
  return fmt::format("{:.{}f} ({})", f.mean, decimals, range_text(f.p5, f.p95, decimals));
}

bool swept(const DiagnosedCache& cache) { return !cache.sweep_of.empty(); }

void open_row(Html& out, const std::string& spec, const std::string& name) {
  out.open("tr");
  out.element("th", name, {{"scope", "row"}, {"title", spec}});
}

void write_table(Html& out, const SelectionDiagnosis& d, const std::map<std::string, std::string>& names) {
  std::vector<std::string> columns = {
      "cache",           "rows a step",  "recall of the exact set", "attention mass",    "of the exact set's",
      "lost by sharing", "output error", "exact rows, exact set",   "stored, exact set", "exact rows, own set",
      "key error",       "its 99 %",     "selected again"};
  if (d.gold_tokens > 0) columns.insert(columns.end(), {"gold tokens, a head", "gold tokens, any head of a layer"});
  open_table(out, "Means over steps, layers and heads (5th to 95th percentile)", columns);
  for (const DiagnosedCache& c : d.caches) {
    if (swept(c)) continue;
    open_row(out, c.spec, names.at(c.spec));
    cell(out, std::to_string(c.selected_rows));
    cell(out, with_range(c.recall, 3));
    cell(out, with_range(c.mass, 3));
    cell(out, with_range(c.mass_ratio, 3));
    cell(out, fmt::format("{:.4f}", c.aggregation_loss));
    cell(out, with_range(c.output_error, 3));
    for (const double x : {c.exact_oracle, c.stored_oracle, c.exact_selected, c.key_error, c.key_error_p99})
      cell(out, fmt::format("{:.4f}", x));
    cell(out, fmt::format("{:.0f} %", 100 * c.reuse));
    if (d.gold_tokens > 0) {
      cell(out, c.gold ? with_range(*c.gold, 3) : "–");
      cell(out, c.gold ? fmt::format("{:.3f}", c.gold_by_one) : "–");
    }
    out.close();
  }
  close_table(out);
}

// The scale begins where the least value lies, so that differences show; it ends at 1.
double low_of(const std::vector<std::vector<double>>& map) {
  double low = 1;
  for (const std::vector<double>& line : map)
    for (const double x : line) low = std::isnan(x) ? low : std::min(low, x);
  return std::max(0.0, std::floor(low * 20) / 20);
}

void write_maps(Html& out, const SelectionDiagnosis& d, const std::map<std::string, std::string>& names, const std::string& id) {
  out.open("div", {{"class", "charts"}});
  int number = 0;
  for (const DiagnosedCache& c : d.caches) {
    if (swept(c)) continue;
    ++number;
    write_heat_map(out, {.id = fmt::format("{}-mass-{}", id, number),
                         .title = fmt::format("Attention mass by layer and head, {}", names.at(c.spec)),
                         .caption = "What attention sees of the mass that the exact set of as many rows would give; dark is all.",
                         .values = c.mass_ratio.map,
                         .low = std::min(0.95, low_of(c.mass_ratio.map)),
                         .high = 1});
    if (!c.gold) continue;
    write_heat_map(out, {.id = fmt::format("{}-gold-{}", id, number),
                         .title = fmt::format("Gold tokens attended by layer and head, {}", names.at(c.spec)),
                         .caption = "Share of the tokens that hold the answer; dark is all of them.",
                         .values = c.gold->map});
  }
  out.close();
}

// One line a swept cache over the budgets.
struct SweepWish {
  std::string id;
  std::string title;
  std::string caption;
  std::string y_label;
  DiagnosedFigure DiagnosedCache::* figure;
};

void write_sweep(Html& out, const SelectionDiagnosis& d, const std::map<std::string, std::string>& names, const SweepWish& wish) {
  std::vector<double> shares;
  for (const DiagnosedCache& c : d.caches)
    if (swept(c) && std::ranges::find(shares, c.budget_share) == shares.end()) shares.push_back(c.budget_share);
  if (shares.size() < 2) return;
  std::ranges::sort(shares);
  Chart chart;
  chart.id = wish.id;
  chart.title = wish.title;
  chart.caption = wish.caption;
  chart.x_label = "rows selected, share of the prompt";
  chart.y_label = wish.y_label;
  for (const double share : shares) chart.x_names.push_back(fmt::format("1/{:.0f}", 1 / share));
  for (const DiagnosedCache& c : d.caches) {
    if (swept(c)) continue;
    ChartSeries series{c.spec, names.at(c.spec), static_cast<int>(chart.series.size()) + 1, false, {}};
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const auto at = std::ranges::find_if(
          d.caches, [&](const DiagnosedCache& o) { return o.sweep_of == c.spec && o.budget_share == shares[i]; });
      if (at != d.caches.end()) series.points.push_back({static_cast<double>(i), ((*at).*wish.figure).mean, {}, {}});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  if (!chart.series.empty()) write_lines(out, chart);
}

void write_one(Html& out, const SelectionDiagnosis& d, std::size_t number) {
  std::vector<std::string> specs;
  for (const DiagnosedCache& c : d.caches)
    if (!swept(c)) specs.push_back(c.spec);
  const std::map<std::string, std::string> names = short_names(specs);
  const std::string id = fmt::format("selection-{}", number);
  const std::string gold = d.gold_tokens > 0 ? fmt::format(", of which {} hold the answer", d.gold_tokens) : "";
  const std::string texts = d.texts > 1 ? fmt::format("in {} of up to", counted(d.texts, "text")) : "after";
  out.element("h3",
              fmt::format("{}: {} {} {} tokens{}", d.source, counted(d.steps, "step"), texts, grouped(d.prefix_tokens), gold));
  write_table(out, d, names);
  write_maps(out, d, names, id);
  out.open("div", {{"class", "charts"}});
  write_sweep(out, d, names,
              {.id = id + "-sweep-mass",
               .title = "Attention mass by budget",
               .caption = "Mean over steps, layers and heads; rows that are always kept count.",
               .y_label = "mass",
               .figure = &DiagnosedCache::mass});
  write_sweep(out, d, names,
              {.id = id + "-sweep-recall",
               .title = "Recall of the exact set by budget",
               .caption = "The exact set has as many rows as the selection.",
               .y_label = "recall",
               .figure = &DiagnosedCache::recall});
  out.close();
}

}  // namespace

void write_diagnosis_section(Html& out, std::span<const SelectionDiagnosis> diagnoses) {
  out.open("section", {{"aria-labelledby", "selection"}});
  out.element("h2", "Which rows are found", {{"id", "selection"}});
  out.element("p",
              "Caches that select rows, asked what full was asked on the same text. Recall counts rows; mass weighs them by the "
              "attention that full gives them. Output errors of a head tell the two causes apart: with exact rows and its own "
              "selection a cache loses by its index, with stored rows and the exact set by how rows are stored.");
  for (std::size_t i = 0; i < diagnoses.size(); ++i) write_one(out, diagnoses[i], i + 1);
  out.close();
}

}  // namespace kvartet
