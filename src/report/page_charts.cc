// The short answers and the pictures: quality against price, by length, by depth.
#include <algorithm>
#include <optional>
#include <set>

#include "core/counted.h"
#include "report/page_parts.h"

namespace kvartet {
namespace {

constexpr const char* kRatioLabel = "times smaller than f16";
constexpr const char* kRateLabel = "tokens per second";

// What stands on the y axis: the difference to full where there is one, else the mean.
std::optional<ChartPoint> quality_point(const Measured& m, bool reference, bool compared) {
  ChartPoint p;
  if (!compared) {
    if (!m.mean) return std::nullopt;
    p.y = *m.mean;
    return p;
  }
  if (reference) return p;  // the difference of full to itself is 0
  if (!m.difference) return std::nullopt;
  p.y = *m.difference;
  p.low = m.low;
  p.high = m.high;
  return p;
}

// `full`: null where it did not run, so that nothing is compared.
Chart quality_chart(bool likelihood, const Measured* full) {
  Chart chart;
  chart.y_decimals = likelihood ? 2 : 0;
  chart.y_label = likelihood ? "nats per token" : "points of 100";
  if (full != nullptr) {
    chart.y_label += ", to full";
    chart.margin = full->margin;
  }
  return chart;
}

// Differences of the likelihood to full.
Chart difference_chart() {
  Measured full;
  full.margin = kLikelihoodMargin;
  return quality_chart(true, &full);
}

ChartSeries series_of(const PageContext& page, const std::string& spec) {
  return {spec, page.name(spec), page.styles.at(spec), page.reference(spec), {}};
}

std::string sentence_start(std::string text) {
  text[0] = static_cast<char>(text[0] >= 'a' && text[0] <= 'z' ? text[0] - 'a' + 'A' : text[0]);
  return text;
}

void loss_cell(Html& out, const CacheFinding& c) {
  switch (c.loss) {
    case Loss::kAsGood: out.element("td", "= as good", {{"class", "verdict same"}}); return;
    case Loss::kNoMeasuredLoss: out.element("td", "≈ no measured loss", {{"class", "verdict same"}}); return;
    case Loss::kLoses: out.element("td", "▼ loses", {{"class", "verdict worse"}}); return;
    case Loss::kFailed: out.element("td", "✕ failed", {{"class", "verdict worse"}}); return;
    case Loss::kUndecided: out.element("td", "? undecided", {{"class", "verdict open"}}); return;
    case Loss::kReference: out.element("td", "reference", {{"class", "verdict"}}); return;
  }
}

void write_finding_table(Html& out, const PageContext& page, const WorkloadFinding& finding) {
  open_table(out,
             fmt::format("All caches on {}{}, over {}", workload_name(finding.workload), question_suffix(finding.position),
                         finding.samples == 1 ? "1 sample" : fmt::format("all {} samples", finding.samples)),
             {"cache", "answer", "times smaller", "nats to full", "95 %", "points to full", "95 %", "first token, × full",
              "tokens/s, × full", "pairs"});
  for (const CacheFinding& c : finding.caches) {
    const char* mark = c.shared ? "*" : "";
    open_cache_row(out, page, c.spec);
    loss_cell(out, c);
    cell(out, c.ratio > 0 ? range_text(c.ratio_low, c.ratio_high, 2) : "–");
    cell(out, c.likelihood.difference ? signed_text(*c.likelihood.difference, 3) : "–");
    cell(out, interval_or_dash(c.likelihood, 3));
    cell(out, c.score.difference ? signed_text(*c.score.difference, 1) : "–");
    cell(out, interval_or_dash(c.score, 1));
    cell(out, c.ttft_factor ? fmt::format("{:.2f}{}", *c.ttft_factor, mark) : "–");
    cell(out, c.decode_factor ? fmt::format("{:.2f}{}", *c.decode_factor, mark) : "–");
    cell(out, c.loss == Loss::kReference ? "–" : std::to_string(c.pairs));
    out.close();
  }
  close_table(out);
}

// The same picture over a whole kind of work; decode rate as a factor of full's, because tables differ in length. Rates of steps
// that caches shared are no measure of speed: without others there is no picture of them.
void write_finding_chart(Html& out, const PageContext& page, const WorkloadFinding& finding, const std::string& id,
                         bool against_rate) {
  const bool likelihood =
      std::ranges::any_of(finding.caches, [](const CacheFinding& c) { return c.likelihood.mean.has_value(); });
  const auto full = std::ranges::find(finding.caches, Loss::kReference, &CacheFinding::loss);
  const bool compared = finding.has_reference && full != finding.caches.end();
  Chart chart = quality_chart(likelihood, !compared ? nullptr : likelihood ? &full->likelihood : &full->score);
  chart.id = id;
  chart.title = against_rate ? "Quality against decode rate" : "Quality against compression";
  chart.x_label = against_rate ? "decode rate, times full's" : kRatioLabel;
  chart.x_decimals = against_rate ? 2 : 1;
  for (const CacheFinding& c : finding.caches) {
    const bool reference = page.reference(c.spec);
    std::optional<ChartPoint> p = quality_point(likelihood ? c.likelihood : c.score, reference, finding.has_reference);
    const std::optional<double> x = !against_rate                        ? (c.ratio > 0 ? std::optional(c.ratio) : std::nullopt)
                                    : reference && finding.has_reference ? std::optional(1.0)
                                                                         : c.decode_factor;
    if (!p || !x || (against_rate && c.shared)) continue;
    p->x = *x;
    ChartSeries series = series_of(page, c.spec);
    series.points = {*p};
    chart.series.push_back(std::move(series));
  }
  if (chart.series.size() < 2) return;
  chart.caption = "Up is better, right is cheaper; bars are 95 % intervals.";
  write_scatter(out, chart);
}

// On how many of the tables behind an answer it rests on weak ground.
void write_answer_cautions(Html& out, const PageContext& page, const WorkloadFinding& finding) {
  std::size_t tables = 0;
  std::size_t weak = 0;
  std::size_t cut = 0;
  for (const PageTable& table : page.tables) {
    if (table.position != finding.position || std::ranges::find(finding.tasks, table.task) == finding.tasks.end()) continue;
    const TableCaution caution = caution_of(table.rows);
    ++tables;
    weak += caution.weak != nullptr ? 1 : 0;
    cut += caution.many_cut() ? 1 : 0;
  }
  if (weak + cut == 0) return;
  std::vector<std::string> what;
  const std::string all = counted(tables, "table");
  if (weak > 0) what.push_back(fmt::format("full itself is weak on {} of {}", weak, all));
  if (cut > 0) what.push_back(fmt::format("many answers were cut at the limit of tokens on {} of {}", cut, all));
  out.open("p", {{"class", "caution"}}).text(fmt::format("Careful: {}; see ", joined(what)));
  out.element("a", "Know before you compare", {{"href", "#caveats"}}).text(".").close();
}

}  // namespace

void write_tradeoff(Html& out, const PageContext& page, const PageTable& table, const ScatterWish& wish) {
  const auto full = std::ranges::find_if(table.rows, [&](const ReportRow* r) { return page.reference(r->spec) && r->n > 0; });
  const bool compared = full != table.rows.end();
  Chart chart = quality_chart(wish.likelihood, !compared ? nullptr : wish.likelihood ? &(*full)->likelihood : &(*full)->score);
  chart.id = wish.id;
  chart.title = wish.title;
  chart.x_label = wish.against_rate ? kRateLabel : kRatioLabel;
  // Rates of caches that ran alone stand with each other only.
  const bool alone = std::ranges::count_if(table.rows, [](const ReportRow* r) { return r->solo && r->solo->runs > 0; }) >= 2;
  for (const ReportRow* row : table.rows) {
    if (row->n == 0) continue;
    std::optional<ChartPoint> p =
        quality_point(wish.likelihood ? row->likelihood : row->score, page.reference(row->spec), compared);
    const ShownTimes times = alone ? shown_times(*row) : ShownTimes{row->ttft_s, row->decode_tokens_per_s, row->shared};
    const bool comparable = alone ? row->solo && row->solo->runs > 0 : !row->shared;
    if (!p || (wish.against_rate && (!times.decode_tokens_per_s || !comparable))) continue;
    p->x = wish.against_rate ? *times.decode_tokens_per_s : row->compression_ratio;
    ChartSeries series = series_of(page, row->spec);
    series.points = {*p};
    chart.series.push_back(std::move(series));
  }
  if (chart.series.size() < 2) return;
  chart.caption = "Up is better, right is cheaper.";
  if (wish.against_rate)
    chart.caption = alone ? "Rates of each cache alone. Up is better, right is faster." : "Up is better, right is faster.";
  write_scatter(out, chart);
}

void write_answers(Html& out, const PageContext& page) {
  out.open("section", {{"aria-labelledby", "answers"}}).element("h2", "Short answer", {{"id", "answers"}});
  int number = 0;
  for (const WorkloadFinding& finding : find_answers(page.results, page.rows)) {
    ++number;
    const Answer answer = answer_of(finding, page.names);
    std::vector<std::string> lengths;
    for (const int context : finding.contexts) lengths.push_back(grouped(context));
    out.open("article", {{"class", "answer"}});
    out.element("h3", sentence_start(workload_name(finding.workload)) + question_suffix(finding.position));
    out.element("p",
                fmt::format("Measured by {} at {} tokens of room for prompt and answer, {}.", joined(finding.tasks),
                            joined(lengths), counted(finding.samples, "sample")),
                {{"class", "small"}});
    out.element("p", answer.claim, {{"class", "claim"}});
    if (!answer.few.empty()) out.element("p", fmt::format("Careful: {}.", answer.few), {{"class", "caution"}});
    write_answer_cautions(out, page, finding);
    if (!answer.evidence.empty()) out.element("p", answer.evidence);
    if (!answer.next.empty()) out.element("p", answer.next);
    if (!answer.nearest.empty()) out.element("p", answer.nearest);
    if (!answer.cost.empty()) out.element("p", answer.cost);
    if (!answer.others.empty()) {
      out.element("p", "The others, the harmless first, then the undecided, and those that lose last:");
      out.open("ul");
      for (const std::string& other : answer.others) out.element("li", other);
      out.close();
    }
    out.open("div", {{"class", "charts"}});
    write_finding_chart(out, page, finding, fmt::format("answer-{}-ratio", number), false);
    write_finding_chart(out, page, finding, fmt::format("answer-{}-rate", number), true);
    out.close();
    write_finding_table(out, page, finding);
    out.close();
  }
  out.close();
}

void write_context_section(Html& out, const PageContext& page) {
  out.open("section", {{"aria-labelledby", "contexts"}}).element("h2", "Likelihood by length", {{"id", "contexts"}});
  out.element("p", "Difference to full in nats per token of the reference answer, by the room for prompt and answer in tokens.");
  std::vector<std::pair<std::string, QuestionPosition>> tasks;
  for (const PageTable& t : page.tables) {
    if (std::ranges::find(tasks, std::pair(t.task, t.position)) == tasks.end()) tasks.emplace_back(t.task, t.position);
  }
  int number = 0;
  for (const auto& [task, position] : tasks) {
    std::vector<const PageTable*> own;
    for (const PageTable& t : page.tables) {
      if (t.task == task && t.position == position) own.push_back(&t);
    }
    out.open("div", {{"data-task", task}}).element("h3", task + question_suffix(position));
    std::vector<std::string> columns = {"cache"};
    Chart chart = difference_chart();
    chart.id = fmt::format("context-{}", ++number);
    chart.title = "Likelihood by length, " + task + question_suffix(position);
    chart.caption = "Bars are 95 % intervals; within the band is the same as full.";
    chart.x_label = "room for prompt and answer, in tokens";
    for (const PageTable* t : own) {
      columns.push_back(fmt::format("{} tokens", grouped(t->context)));
      chart.x_names.push_back(grouped(t->context));
    }
    open_table(out, "Nats to full, 95 % interval", columns);
    for (const std::string& spec : page.specs) {
      ChartSeries series = series_of(page, spec);
      open_cache_row(out, page, spec);
      for (std::size_t i = 0; i < own.size(); ++i) {
        const auto row = std::ranges::find(own[i]->rows, spec, &ReportRow::spec);
        const bool there = row != own[i]->rows.end() && (*row)->likelihood.difference;
        if (!there) {
          cell(out, page.reference(spec) ? "reference" : "–");
          continue;
        }
        const Measured& m = (*row)->likelihood;
        cell(out, fmt::format("{} ({})", signed_text(*m.difference, 3), interval_or_dash(m, 3)));
        series.points.push_back({static_cast<double>(i), *m.difference, m.low, m.high});
      }
      out.close();
      if (!series.points.empty()) chart.series.push_back(std::move(series));
    }
    close_table(out);
    if (own.size() > 1 && !chart.series.empty()) write_lines(out, chart);
    out.close();
  }
  out.close();
}

void write_depth_section(Html& out, const PageContext& page) {
  static const std::vector<std::string> kBinNames = {"first fifth", "second", "middle", "fourth", "last fifth"};
  out.open("section", {{"aria-labelledby", "depths"}})
      .element("h2", "Loss by the fact's depth in the document", {{"id", "depths"}});
  out.element("p",
              "Samples with one fact, by the fifth of the document in which it stands: nats to full, and in brackets the score.");
  const std::vector<DepthRow> rows = depth_rows(page.results);
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin;
    while (end < rows.size() && rows[end].cell == rows[begin].cell) ++end;
    const DepthRow& first = rows[begin];
    const Cell& at = first.cell;
    out.open("div", {{"data-task", at.task}, {"data-context", std::to_string(at.context)}});
    out.element("h3", fmt::format("{} at {} tokens{}", at.task, grouped(at.context), question_suffix(at.position)));
    std::vector<std::string> columns = {"cache"};
    for (std::size_t b = 0; b < kBinNames.size(); ++b)
      columns.push_back(fmt::format("{} (n = {})", kBinNames[b], first.bins[b].n));
    open_table(out, "Nats to full (score)", columns);
    Chart chart = difference_chart();
    chart.id = fmt::format("depth-{}", begin);
    chart.title = fmt::format("Loss by depth, {} at {}{}", at.task, grouped(at.context), question_suffix(at.position));
    chart.caption = "Within the band is the same as full. A fifth holds few samples: look at the pattern, not at a single mark.";
    chart.x_label = "where the fact stands";
    chart.x_names = {"first", "second", "middle", "fourth", "last"};
    for (const std::string& spec : page.specs) {
      const auto row =
          std::find_if(rows.begin() + static_cast<std::ptrdiff_t>(begin), rows.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](const DepthRow& r) { return r.spec == spec; });
      if (row == rows.begin() + static_cast<std::ptrdiff_t>(end)) continue;
      ChartSeries series = series_of(page, spec);
      open_cache_row(out, page, spec);
      for (std::size_t b = 0; b < row->bins.size(); ++b) {
        const DepthBin& bin = row->bins[b];
        const std::string nats = bin.likelihood.difference ? signed_text(*bin.likelihood.difference, 3)
                                 : page.reference(spec)    ? "reference"
                                                           : "–";
        cell(out, bin.n == 0 ? "–" : bin.score.mean ? fmt::format("{} ({:.0f})", nats, *bin.score.mean) : nats);
        if (bin.likelihood.difference) series.points.push_back({static_cast<double>(b), *bin.likelihood.difference, {}, {}});
      }
      out.close();
      if (!series.points.empty()) chart.series.push_back(std::move(series));
    }
    close_table(out);
    if (!chart.series.empty()) write_lines(out, chart);
    out.close();
    begin = end;
  }
  out.close();
}

}  // namespace kvartet
