// The section of the planner's choices: which cache for which work, length and memory, and what else there was.
#include <algorithm>
#include <cmath>
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
    for (const Decision& d : kind.decisions) {
      add(d.spec);
      add(d.what_if_spec);
    }
    add(kind.answer.spec);
    for (const DecisionPoint& p : kind.picture.points) add(p.spec);
  }
  return short_names(specs);
}

std::string nats_text(double nats) { return fmt::format("{:.3f}", nats); }

std::string loss_text(const DecidedLoss& loss) {
  return fmt::format("{} ({})", nats_text(loss.expected), interval_text(loss.low, loss.high, 3));
}

// "measured here", "carried over from a neighbour"
std::string origin_text(const std::string& source) {
  if (source == "neighbour") return "carried over from a neighbour";
  return source == "prior" ? "by the papers' findings alone" : source;
}

std::string source_text(const Decision& d) {
  return d.samples > 0 ? fmt::format("{}, {}", d.source, counted(d.samples, "sample")) : d.source;
}

// A prediction with the range it may lie in, and no more digits than that allows: "6.0 (2.0 to 18)".
std::string with_error(double x, double error) {
  const int digits = error < 0.5 ? 3 : 2;
  const auto text = [&](double value) {
    const int whole = value > 0 ? static_cast<int>(std::floor(std::log10(value))) : 0;
    return fmt::format("{:.{}f}", value, std::clamp(digits - 1 - whole, 0, 6));
  };
  return error > 0 ? fmt::format("{} ({} to {})", text(x), text(x / (1 + error)), text(x * (1 + error))) : text(x);
}

std::string what_if_text(const Names& names, const Decision& d) {
  if (d.what_if.empty()) return "–";
  return fmt::format("{}: {}, expected loss {}", d.what_if, names.at(d.what_if_spec), nats_text(d.what_if_loss));
}

std::string cap_text(const Decision& d) { return fmt::format("f16 / {:.0f}", 1 / d.cap_share); }

void write_decision(Html& out, const Names& names, const Decision& d) {
  out.open("tr");
  out.element(
      "th",
      fmt::format("{} tokens, at most {} ({})", grouped(d.prompt_tokens + d.answer_tokens), bytes_text(d.cap_bytes), cap_text(d)),
      {{"scope", "row"}});
  if (d.spec.empty()) {
    out.element("td", "✕ nothing fits", {{"class", "verdict worse"}});
    for (int i = 0; i < 5; ++i) cell(out, "–");
    out.element("td", d.reason, {{"class", "words"}});
    out.close();
    return;
  }
  out.open("td", {{"class", "verdict words"}});
  write_name(out, names.at(d.spec));
  out.close();
  cell(out, bytes_text(d.bytes));
  cell(out, with_error(d.ttft_s, d.time_error));
  cell(out, with_error(d.decode_tokens_per_s, d.time_error));
  cell(out, loss_text(d.loss));
  cell(out, source_text(d));
  out.element("td", what_if_text(names, d), {{"class", "words"}});
  out.close();
}

void write_decision_table(Html& out, const Names& names, const DecisionKind& kind) {
  open_table(out, fmt::format("The choice for {}; in brackets what times, rates and losses may be", kind.kind),
             {"prompt and answer, memory", "cache", "bytes", "first token, s", "tokens/s", "expected loss, nats (95 %)",
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
  chart.title = fmt::format("What could be chosen for {} at {} prompt tokens", kind.kind, grouped(picture.prompt_tokens));
  chart.caption = "Up is better, right is smaller; the dashed line is the best that any amount of memory buys.";
  if (picture.left_out > 0)
    chart.caption +=
        fmt::format(" Not shown: {} expected to lose more.", counted(picture.left_out, "cache that is", "caches that are"));
  chart.x_label = "times smaller than f16";
  chart.x_scale = XScale::kDoublings;
  chart.y_label = "nats per token, to full, expected";
  chart.margin = kLikelihoodMargin;
  double lowest = 0;
  for (const DecisionPoint& p : picture.points) lowest = std::min(lowest, -p.loss.expected);
  int style = 0;
  for (const DecisionPoint& p : picture.points) {
    ChartSeries series;
    series.spec = p.spec;
    series.points = {{p.times_smaller, 0 - p.loss.expected, {}, {}}};
    if (p.chosen) {
      series.label = names.at(p.spec);
      series.reference = p.spec == kReference;
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
  out.element(
      "p", fmt::format("What 'kvartet plan' chooses for {}: the least expected loss that fits the memory, in nats per token of "
                       "the reference answer: 0.01 is about one percent of its probability.",
                       decisions.model));
  out.element(
      "p",
      "The short answer names the smallest cache that was measured to lose nothing; this section asks what loses least within a "
      "limit of memory, and predicts it for many caches that did not run. Under each kind stands where the two part, and why; "
      "believe what was measured. A loss from a neighbour is that of the same cache at another length or task, or of a similar "
      "cache: its wide interval says how little that tells.",
      {{"class", "small"}});
  out.element("p", fmt::format("Losses: {}. Times: {}.", decisions.statistics, decisions.machine), {{"class", "small"}});
  int number = 0;
  for (const DecisionKind& kind : decisions.kinds) {
    out.open("article", {{"class", "decision"}});
    out.element("h3", fmt::format("{}: {}", kind.kind, kind.summary));
    out.element("p", beside_short_answer(kind, names));
    write_decision_table(out, names, kind);
    write_picture(out, names, kind, fmt::format("decision-{}", ++number));
    out.close();
  }
  out.close();
}

std::vector<ShortAnswer> short_answers(const StoredResults& results, std::span<const ReportRow> rows) {
  std::vector<ShortAnswer> out;
  for (const WorkloadFinding& finding : find_answers(results, rows)) {
    if (finding.position != QuestionPosition::kSeen) continue;
    out.push_back({workload_name(finding.workload), finding.tasks, {}, {}});
    if (!finding.best) continue;
    const CacheFinding& best = finding.caches[*finding.best];
    out.back().spec = best.spec;
    out.back().evidence = difference_text(best);
  }
  return out;
}

std::string beside_short_answer(const DecisionKind& kind, const Names& names) {
  if (kind.answer.work.empty())
    return "No task of this kind ran here, so the short answer says nothing of it: every loss is carried over.";
  if (kind.answer.spec.empty()) {
    return fmt::format(
        "The short answer names no cache for {}, because none smaller than f16 is shown to be harmless; this table takes the "
        "least expected loss all the same.",
        kind.answer.work);
  }
  const std::string& name = names.at(kind.answer.spec);
  const int length = kind.decisions.empty() ? 0 : kind.decisions.back().prompt_tokens + kind.decisions.back().answer_tokens;
  std::vector<std::string> same, too_small, others;
  std::string needs;
  for (const Decision& d : kind.decisions) {
    if (d.prompt_tokens + d.answer_tokens != length || !d.rival) continue;
    if (d.spec == kind.answer.spec) {
      same.push_back(cap_text(d));
    } else if (d.rival->bytes > d.cap_bytes) {
      too_small.push_back(cap_text(d));
      needs = bytes_text(d.rival->bytes);
    } else if (!d.spec.empty()) {
      others.push_back(fmt::format("within {} it is {}, expected to lose {}, {}, where {} is expected to lose {}, {}",
                                   cap_text(d), names.at(d.spec), loss_text(d.loss), origin_text(d.source), name,
                                   loss_text(d.rival->loss), origin_text(d.rival->source)));
    }
  }
  std::vector<std::string> parts;
  if (!same.empty()) parts.push_back(fmt::format("within {} it is the same", joined(same)));
  parts.insert(parts.end(), others.begin(), others.end());
  if (!too_small.empty()) parts.push_back(fmt::format("within {} that one does not fit, taking {}", joined(too_small), needs));
  std::string out = fmt::format("The short answer for {} is {}, {}", kind.answer.work, name, kind.answer.evidence);
  if (parts.empty()) return out + ".";
  out += fmt::format(", the smallest that does not lose; here, with the least expected loss at {} tokens, ", grouped(length));
  for (std::size_t i = 0; i < parts.size(); ++i) out += (i == 0 ? "" : "; ") + parts[i];
  return out + ".";
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
        row["what_if"] =
            d.what_if.empty() ? "" : fmt::format("{}: {}, expected loss {:.4f}", d.what_if, d.what_if_spec, d.what_if_loss);
      }
      rows.push_back(std::move(row));
    }
  }
  return {{"model", decisions.model}, {"statistics", decisions.statistics}, {"machine", decisions.machine}, {"rows", rows}};
}

}  // namespace kvartet
