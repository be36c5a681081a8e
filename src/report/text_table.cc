#include "report/text_table.h"

#include <fmt/format.h>

#include <string_view>

#include "core/counted.h"
#include "report/text_parts.h"
#include "report/token_buckets.h"

namespace kvartet {
namespace {

std::string heading(const ReportRow& first) {
  std::string out = fmt::format("{}, context {}{}: {}", first.task, first.context, question_suffix(first.position),
                                counted(first.n + first.failed, "sample"));
  if (first.n > 0) out += fmt::format(", {:.0f} prompt tokens on average", first.prompt_tokens);
  if (!first.metric.empty()) out += fmt::format(", score: {}", first.metric);
  return out;
}

std::string line_of(const ReportRow& r, std::size_t width) {
  const ShownTimes times = shown_times(r);
  const char* mark = times_mark(r);
  const std::string rate = times.decode_tokens_per_s ? fmt::format("{:.1f}{}", *times.decode_tokens_per_s, mark) : "-";
  const std::string ttft = r.n > 0 ? fmt::format("{:.2f}{}", times.ttft_s, mark) : "-";
  const std::string ratio = r.n > 0 ? fmt::format("{:.2f}", r.compression_ratio) : "-";
  std::string columns = fmt::format("{:>5} {:>13} {:<11} {:>6} {:>14} {:<11} {:>6} {:>7} {:>6}", text_number(r.score.mean, 1),
                                    text_interval(r.score, 1), text_verdict(r.score.verdict), text_number(r.likelihood.mean, 3),
                                    text_interval(r.likelihood, 3), text_verdict(r.likelihood.verdict), ratio, ttft, rate);
  if (r.failed > 0) columns += fmt::format("\n  {} of {} failed", r.failed, r.failed + r.n);
  return spec_line(r.spec, width, columns);
}

std::string column_names(std::size_t width) {
  return fmt::format("{:<{}} {:>5} {:>13} {:<11} {:>6} {:>14} {:<11} {:>6} {:>7} {:>6}\n", "cache", width, "score", "vs full 95%",
                     "verdict", "nats", "vs full 95%", "verdict", "ratio", "ttft s", "tok/s");
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
  const std::size_t width = spec_width(rows);
  std::string out;
  if (!results.runs.empty()) {
    const RunRecord& run = results.runs.back();
    out +=
        wrap_text(fmt::format("{} on {}, {}, seed {}, {}, kvartet {}", run.identity.model_name, run.machine.cpu,
                              counted(run.threads, "thread"), run.identity.seed, parameters_text(results), run.identity.version));
  }
  for (const RowTable& table : tables_of(rows)) {
    out += '\n';
    out += wrap_text(heading(*table.rows.front())) + column_names(width);
    for (const ReportRow* row : table.rows) out += line_of(*row, width);
  }
  out += alone_text(rows, width);
  out += positions_text(results, width);
  out += answers_text(rows, width);
  out += token_buckets_text(results);
  out += "\n";
  out += wrap_text(
      "context: the room for prompt and answer together, in tokens, not the length of the documents; one that is too long loses "
      "its "
      "middle.");
  out += wrap_text(
      "score: points of 100. nats: mean log-likelihood of the reference answer per token; nearer to 0 is better. vs full: 95 % "
      "interval of the paired difference to the cache 'full'.");
  out += wrap_text(
      "verdict: 'same' when the interval lies within +-0.05 nats, or within a tenth of full's score (at most 5 points); 'n too "
      "small': not measurable with this many samples. ratio: f16 bytes / allocated bytes after the prompt.");
  for (const std::string& caveat : report_caveats(results, rows)) out += wrap_text(caveat);
  return without_controls(std::move(out));
}

}  // namespace kvartet
