// The section of the planner's choices: which cache for which work, length and memory, and what else there was.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "report/decisions.h"
#include "report/page_parts.h"

namespace kvartet {
namespace {

using Names = std::map<std::string, std::string>;

Names names_of(const Decisions& decisions) {
  std::vector<std::string> specs;
  const auto add = [&](const std::string& spec) {
    if (!spec.empty() && std::ranges::find(specs, spec) == specs.end()) specs.push_back(spec);
  };
  for (const DecisionKind& kind : decisions.kinds) {
    for (const Decision& d : kind.decisions) add(d.spec);
    for (const DecisionPoint& p : kind.picture.points) add(p.spec);
  }
  return short_names(specs);
}

std::string loss_text(const DecidedLoss& loss) {
  return fmt::format("{:.2f} ({})", loss.expected, interval_text(loss.low, loss.high, 2));
}

std::string source_text(const Decision& d) {
  return d.samples > 0 ? fmt::format("{}, {}", d.source, counted(d.samples, "sample")) : d.source;
}

std::string time_text(double error) {
  return error < 1 ? fmt::format("±{:.0f} %", 100 * error) : fmt::format("within a factor of {:.1f}", 1 + error);
}

void write_decision(Html& out, const Names& names, const Decision& d) {
  out.open("tr");
  out.element("th",
              fmt::format("{} tokens, at most {} (f16 / {:.0f})", grouped(d.prompt_tokens + d.answer_tokens),
                          bytes_text(d.cap_bytes), 1 / d.cap_share),
              {{"scope", "row"}});
  if (d.spec.empty()) {
    out.element("td", "✕ nothing fits", {{"class", "verdict worse"}});
    for (int i = 0; i < 5; ++i) cell(out, "–");
    out.element("td", d.reason, {{"class", "words"}});
    out.close();
    return;
  }
  out.element("td", names.at(d.spec), {{"class", "verdict words"}});
  cell(out, bytes_text(d.bytes));
  cell(out, fmt::format("{:.2f}", d.ttft_s));
  cell(out, fmt::format("{:.1f}", d.decode_tokens_per_s));
  cell(out, loss_text(d.loss));
  cell(out, source_text(d));
  out.element("td", d.what_if.empty() ? "–" : d.what_if, {{"class", "words"}});
  out.close();
}

void write_decision_table(Html& out, const Names& names, const DecisionKind& kind) {
  double error = 0;
  for (const Decision& d : kind.decisions) error = std::max(error, d.time_error);
  open_table(out, fmt::format("The choice for {}; times {}", kind.kind, time_text(error)),
             {"prompt and answer, memory", "cache", "bytes", "first token, s", "tokens/s", "expected loss, points (95 %)",
              "loss from", "what would change it"});
  for (const Decision& d : kind.decisions) write_decision(out, names, d);
  close_table(out);
}

// Those chosen have names and intervals, the others are dots: they are many.
void write_picture(Html& out, const Names& names, const DecisionKind& kind, const std::string& id) {
  const DecisionPicture& picture = kind.picture;
  if (picture.points.size() < 2) return;
  Chart chart;
  chart.id = id;
  chart.title = fmt::format("What could be chosen for {} at {} tokens", kind.kind, grouped(picture.prompt_tokens));
  chart.caption = "Up is better, right is smaller; the dashed line is the best that any amount of memory buys.";
  if (picture.left_out > 0)
    chart.caption +=
        fmt::format(" Not shown: {} expected to lose more.", counted(picture.left_out, "cache that is", "caches that are"));
  chart.x_label = "times smaller than f16";
  chart.x_scale = XScale::kDoublings;
  chart.y_label = "points to full, expected";
  chart.y_decimals = 0;
  chart.margin = 100 * kLikelihoodMargin;
  double lowest = 0;
  for (const DecisionPoint& p : picture.points) lowest = std::min(lowest, -p.loss.expected);
  int style = 0;
  for (const DecisionPoint& p : picture.points) {
    ChartSeries series;
    series.spec = p.spec;
    series.points = {{p.times_smaller, 0 - p.loss.expected, {}, {}}};
    if (p.chosen) {
      series.label = names.at(p.spec);
      series.reference = p.spec == "full";
      series.style = series.reference ? 0 : ++style;
      series.points.front().low = std::max(-p.loss.high, lowest);
      series.points.front().high = -p.loss.low;
    }
    chart.series.push_back(std::move(series));
  }
  write_scatter(out, chart);
}

}  // namespace

void write_decisions_section(Html& out, const Decisions& decisions) {
  if (decisions.empty()) return;
  const Names names = names_of(decisions);
  out.open("section", {{"aria-labelledby", "decisions"}}).element("h2", "Which cache to take", {{"id", "decisions"}});
  out.element("p", fmt::format("What 'kvartet plan' chooses for {}: the least expected loss that fits the memory. One point is "
                               "0.01 nats per token of the reference answer, about one percent of its probability.",
                               decisions.model));
  out.element(
      "p",
      "The short answer judges the caches that ran here; this section predicts, for many that did not, what fits a limit of "
      "memory. Where the two disagree, believe the short answer. A loss from a neighbour is that of the same cache at another "
      "length or task, or of a similar cache: its wide interval says how little that tells.",
      {{"class", "small"}});
  out.element("p", fmt::format("Losses: {}. Times: {}.", decisions.statistics, decisions.machine), {{"class", "small"}});
  int number = 0;
  for (const DecisionKind& kind : decisions.kinds) {
    out.open("article", {{"class", "decision"}});
    out.element("h3", fmt::format("{}: {}", kind.kind, kind.summary));
    write_decision_table(out, names, kind);
    write_picture(out, names, kind, fmt::format("decision-{}", ++number));
    out.close();
  }
  out.close();
}

nlohmann::json decisions_json(const Decisions& decisions) {
  nlohmann::json rows = nlohmann::json::array();
  for (const DecisionKind& kind : decisions.kinds) {
    for (const Decision& d : kind.decisions) {
      nlohmann::json row = {{"kind", d.kind},
                            {"prompt_tokens", d.prompt_tokens},
                            {"answer_tokens", d.answer_tokens},
                            {"cap_bytes", d.cap_bytes},
                            {"reason", d.reason},
                            {"spec", nullptr}};
      if (!d.spec.empty()) {
        row["spec"] = d.spec;
        row["bytes"] = d.bytes;
        row["ttft_s"] = d.ttft_s;
        row["decode_tokens_per_s"] = d.decode_tokens_per_s;
        row["time_error"] = d.time_error;
        row["loss"] = {{"low", d.loss.low},
                       {"expected", d.loss.expected},
                       {"high", d.loss.high},
                       {"source", d.source},
                       {"samples", d.samples}};
        row["what_if"] = d.what_if;
      }
      rows.push_back(std::move(row));
    }
  }
  return {{"model", decisions.model}, {"statistics", decisions.statistics}, {"machine", decisions.machine}, {"rows", rows}};
}

}  // namespace kvartet
