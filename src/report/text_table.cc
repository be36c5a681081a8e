#include "report/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace kvartet {
namespace {

constexpr std::size_t kColumns = 120;
constexpr std::size_t kLongestSpec = 31;

// "snapkv:budget=0.25,window=32,..." in pieces that fit, cut behind a comma or a plus where there is one.
std::vector<std::string> wrap_spec(std::string_view spec, std::size_t width) {
  std::vector<std::string> out;
  std::string_view indent;  // of continuation lines
  while (spec.size() > width - indent.size()) {
    std::size_t cut = spec.find_last_of(",+", width - indent.size() - 1);
    cut = cut == std::string_view::npos || cut == 0 ? width - indent.size() : cut + 1;
    out.push_back(fmt::format("{}{}", indent, spec.substr(0, cut)));
    spec.remove_prefix(cut);
    indent = "  ";
  }
  out.push_back(fmt::format("{}{}", indent, spec));
  return out;
}

std::string number_or_dash(const std::optional<double>& x, int decimals) {
  return x ? fmt::format("{:.{}f}", *x, decimals) : "-";
}

std::string interval_text(const Measured& m, int decimals) {
  if (m.verdict == Verdict::kNone) return "";
  if (!m.low || !m.high) return "-";
  return fmt::format("{:+.{}f}..{:+.{}f}", *m.low, decimals, *m.high, decimals);
}

std::string_view short_verdict(Verdict verdict) {
  return verdict == Verdict::kNotMeasurable ? "n too small" : verdict_name(verdict);
}

std::string heading(const ReportRow& first) {
  std::string out = fmt::format("{}, context {}: {} samples", first.task, first.context, first.n + first.failed);
  if (first.n > 0) out += fmt::format(", {:.0f} prompt tokens on average", first.prompt_tokens);
  if (!first.metric.empty()) out += fmt::format(", score: {}", first.metric);
  return out;
}

std::string line_of(const ReportRow& r, std::string_view spec, std::size_t width) {
  const std::string score = number_or_dash(r.score.mean, 1);
  const std::string nats = number_or_dash(r.likelihood.mean, 3);
  const char* mark = r.shared ? "*" : "";
  const std::string rate = r.decode_tokens_per_s ? fmt::format("{:.1f}{}", *r.decode_tokens_per_s, mark) : "-";
  const std::string ttft = r.n > 0 ? fmt::format("{:.2f}{}", r.ttft_s, mark) : "-";
  const std::string ratio = r.n > 0 ? fmt::format("{:.2f}", r.compression_ratio) : "-";
  std::string out = fmt::format("{:<{}} {:>5} {:>13} {:<11} {:>6} {:>14} {:<11} {:>6} {:>7} {:>6}", spec, width, score,
                                interval_text(r.score, 1), short_verdict(r.score.verdict), nats, interval_text(r.likelihood, 3),
                                short_verdict(r.likelihood.verdict), ratio, ttft, rate);
  if (r.failed > 0) out += fmt::format("\n  {} of {} failed", r.failed, r.failed + r.n);
  return out + "\n";
}

std::string column_names(std::size_t width) {
  return fmt::format("{:<{}} {:>5} {:>13} {:<11} {:>6} {:>14} {:<11} {:>6} {:>7} {:>6}\n", "cache", width, "score", "vs full 95%",
                     "verdict", "nats", "vs full 95%", "verdict", "ratio", "ttft s", "tok/s");
}

// Sentences broken at spaces so that a terminal need not.
std::string wrap_text(std::string_view text) {
  std::string out;
  while (text.size() > kColumns) {
    std::size_t cut = text.rfind(' ', kColumns);
    if (cut == std::string_view::npos || cut == 0) cut = kColumns;
    out += std::string(text.substr(0, cut)) + "\n";
    text.remove_prefix(std::min(text.size(), text[cut] == ' ' ? cut + 1 : cut));
  }
  return out + std::string(text) + "\n";
}

// Names come from files that others made: nothing in them may steer the terminal. C0 and C1 control characters, the latter as
// UTF-8.
std::string without_controls(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 = byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if ((byte < 0x20 && text[i] != '\n') || byte == 0x7f) text[i] = '?';
    if (c1) text.replace(i, 2, "?");
  }
  return text;
}

}  // namespace

std::string text_table(const StoredResults& results, std::span<const ReportRow> rows) {
  if (rows.empty()) return "No sample has been finished yet.\n";
  std::size_t width = 5;
  for (const ReportRow& r : rows) {
    for (const std::string& piece : wrap_spec(r.spec, kLongestSpec)) width = std::max(width, piece.size());
  }
  std::string out;
  if (!results.runs.empty()) {
    const RunRecord& run = results.runs.back();
    out += wrap_text(fmt::format("{} on {}, {} threads, seed {}, {}, kvartet {}", run.identity.model_name, run.machine.cpu,
                                 run.threads, run.identity.seed, run.identity.parameters, run.identity.version));
  }
  const ReportRow* previous = nullptr;
  for (const ReportRow& r : rows) {
    if (previous == nullptr || previous->task != r.task || previous->context != r.context) {
      out += '\n';
      out += wrap_text(heading(r));
      out += column_names(width);
    }
    const std::vector<std::string> pieces = wrap_spec(r.spec, kLongestSpec);
    out += line_of(r, pieces.front(), width);
    for (std::size_t i = 1; i < pieces.size(); ++i) out += pieces[i] + "\n";
    previous = &r;
  }
  out += "\n";
  out += wrap_text(
      "score: points of 100. nats: mean log-likelihood of the reference answer per token; nearer to 0 is better. vs full: 95 % "
      "interval of the paired difference to the cache 'full'.");
  out += wrap_text(
      "verdict: 'same' when the interval lies within +-5 points or +-0.05 nats; 'n too small': not measurable with this many "
      "samples. ratio: f16 bytes / allocated bytes after the prompt.");
  for (const std::string& caveat : report_caveats(results, rows)) out += wrap_text(caveat);
  return without_controls(std::move(out));
}

}  // namespace kvartet
