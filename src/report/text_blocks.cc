// The blocks behind the main tables: how long the answers are, each cache alone, the question seen, unseen and asked second.
#include <fmt/format.h>

#include <algorithm>

#include "core/counted.h"
#include "report/positions.h"
#include "report/text_parts.h"

namespace kvartet {
namespace {

// One table after the other, each under its heading.
template <typename Heading, typename Line>
std::string by_table(const std::vector<RowTable>& tables, Heading heading, Line line) {
  std::string out;
  for (const RowTable& table : tables) {
    out += heading(table);
    for (const ReportRow* row : table.rows) out += line(*row);
  }
  return out;
}

// A block's title and the names of its columns.
std::string block_begin(std::string_view title, std::size_t width, std::string_view columns) {
  return fmt::format("\n{}{}", wrap_text(title), spec_line("cache", width, columns));
}

std::string range_column(const RunSpread& s, int decimals) {
  return fmt::format("{:.{}f}-{:.{}f}", s.low, decimals, s.high, decimals);
}

std::string alone_line(const ReportRow& r, std::size_t width) {
  const SoloFigures& s = *r.solo;
  const std::optional<RunSpread>& rate = s.decode_tokens_per_s;
  const auto gap = [&](double GapSpread::* field) { return s.gaps ? fmt::format("{:.1f}", (*s.gaps).*field) : "-"; };
  const std::string peak = s.peak_rss_bytes > 0 ? fmt::format("{:.0f}", static_cast<double>(s.peak_rss_bytes) / 1048576) : "-";
  const std::string columns =
      fmt::format("{:>7.2f} {:>11} {:>8} {:>6} {:>11} {:>4} {:>6} {:>6} {:>6} {:>6} {:>7}", s.ttft_s.median,
                  range_column(s.ttft_s, 2), fmt::format("{:.2f}{}", r.ttft_s, r.shared ? "*" : ""),
                  rate ? fmt::format("{:.1f}", rate->median) : "-", rate ? range_column(*rate, 1) : "-", s.completion_tokens,
                  s.end_to_end_tokens_per_s ? fmt::format("{:.1f}", s.end_to_end_tokens_per_s->median) : "-",
                  gap(&GapSpread::p50), gap(&GapSpread::p95), gap(&GapSpread::p99), peak);
  return spec_line(r.spec, width, columns);
}

// How often, and on which prompt; the counts of the caches differ while a benchmark is unfinished.
std::string alone_heading(const RowTable& table) {
  const SoloFigures& first = *table.rows.front()->solo;
  int least = first.runs;
  int most = least;
  for (const ReportRow* row : table.rows) {
    least = std::min(least, row->solo->runs);
    most = std::max(most, row->solo->runs);
  }
  const std::string runs = least == most ? std::to_string(most) : fmt::format("{} to {}", least, most);
  return fmt::format("{}: each cache alone, {} {} on sample {} of {}", cell_name(table.cell), runs, most == 1 ? "run" : "runs",
                     first.sample, counted(first.prompt_tokens, "prompt token"));
}

std::string position_line(const PositionRow& r, std::size_t width) {
  const std::string columns = fmt::format(
      "{:>4} {:>6} {:>6} {:>13} {:<11} {:>7} {:>7} {:>14} {:<11}", r.n, text_number(r.score_seen, 1),
      text_number(r.score.mean, 1), text_interval(r.score, 1), text_verdict(r.score.verdict), text_number(r.likelihood_seen, 3),
      text_number(r.likelihood.mean, 3), text_interval(r.likelihood, 3), text_verdict(r.likelihood.verdict));
  return spec_line(r.spec, width, columns);
}

// Rows of one position, a block for each table.
std::string position_blocks(std::span<const PositionRow> rows, std::string_view what, std::size_t width) {
  std::string out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PositionRow& r = rows[i];
    if (i == 0 || rows[i - 1].task != r.task || rows[i - 1].context != r.context) {
      const char* other = question_position_name(r.position);
      out += block_begin(fmt::format("{}: {}", cell_name({r.task, r.context}), what), width,
                         fmt::format("{:>4} {:>6} {:>6} {:>13} {:<11} {:>7} {:>7} {:>14} {:<11}", "n", "seen", other,
                                     "score, 95%", "verdict", "seen", other, "nats, 95%", "verdict"));
    }
    out += position_line(r, width);
  }
  return out;
}

}  // namespace

std::string answers_text(std::span<const ReportRow> rows, std::size_t width) {
  const auto heading = [&](const RowTable& table) {
    return block_begin(fmt::format("{}: where caches acted, and how many tokens their answers have", cell_name(table.cell)),
                       width,
                       fmt::format("{:>6} {:>8} {:>6} {:>6} {:>6} {:>7} {:>7}", "acted", "shortest", "1/4", "half", "3/4",
                                   "longest", "cut off"));
  };
  const auto line = [&](const ReportRow& r) {
    const LengthSpread& l = r.lengths;
    return spec_line(r.spec, width,
                     fmt::format("{:>4.0f} % {:>8.0f} {:>6.0f} {:>6.0f} {:>6.0f} {:>7.0f} {:>5.0f} %", 100 * r.acted, l.min, l.q1,
                                 l.median, l.q3, l.max, 100 * r.cut_off));
  };
  return by_table(tables_of(rows, [](const ReportRow& r) { return r.n > 0; }), heading, line);
}

std::string alone_text(std::span<const ReportRow> rows, std::size_t width) {
  const std::vector<RowTable> alone = tables_of(rows, [](const ReportRow& r) { return r.solo && r.solo->runs > 0; });
  if (alone.empty()) return "";
  const auto heading = [&](const RowTable& table) {
    return block_begin(alone_heading(table), width,
                       fmt::format("{:>7} {:>11} {:>8} {:>6} {:>11} {:>4} {:>6} {:>6} {:>6} {:>6} {:>7}", "ttft s", "range",
                                   "shared", "tok/s", "range", "n", "whole", "50% ms", "95% ms", "99% ms", "MiB"));
  };
  return by_table(alone, heading, [&](const ReportRow& r) { return alone_line(r, width); }) +
         wrap_text(
             "alone: in a process of its own, medians and range of the runs; shared: median over all samples in company. n: "
             "tokens of the answer. whole: "
             "tokens per "
             "second from the prompt to the last token. ms: between two tokens. MiB: most memory of the process, weights "
             "included.");
}

std::string positions_text(const StoredResults& results, std::size_t width) {
  const std::vector<PositionRow> rows = position_rows(results);
  const auto is_second = [](const PositionRow& r) { return r.position == QuestionPosition::kSecond; };
  const auto first_second = std::ranges::find_if(rows, is_second);
  const std::span unseen(rows.begin(), first_second);
  const std::span second(first_second, rows.end());
  std::string out;
  if (!unseen.empty()) {
    out += position_blocks(unseen, "question seen or unseen when the cache is sealed", width);
    out += wrap_text("95%: interval of the paired difference unseen minus seen, of the same cache. " + position_floor(rows));
  }
  if (!second.empty()) {
    out += position_blocks(second, "what choosing rows for one question cost the next one", width);
    out += wrap_text("95%: interval of the difference. " + second_question_note());
  }
  return out;
}

}  // namespace kvartet
