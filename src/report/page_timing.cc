// Tables of a section: each cache alone, and the question seen and unseen, seen and asked second.
#include <algorithm>

#include "report/page_parts.h"

namespace kvartet {
namespace {

std::string with_range(const RunSpread& s, int decimals) {
  return fmt::format("{:.{}f} ({})", s.median, decimals, range_text(s.low, s.high, decimals));
}

bool ran_alone(const ReportRow* row) { return row->solo.has_value(); }

// "5 runs", or with the failed ones.
std::string runs_text(const SoloFigures& s) {
  return s.failed > 0 ? fmt::format("{}, {} failed", s.runs, s.failed) : std::to_string(s.runs);
}

const char* same_text(const std::optional<bool>& same) { return !same ? "–" : *same ? "the same" : "another"; }

void write_solo_row(Html& out, const PageContext& page, const ReportRow& r) {
  const SoloFigures& s = *r.solo;
  const bool any = s.runs > 0;
  open_cache_row(out, page, r.spec);
  cell(out, any ? with_range(s.ttft_s, 2) : "–");
  cell(out, r.n > 0 ? fmt::format("{:.2f}{}", r.ttft_s, r.shared ? "*" : "") : "–");
  cell(out, s.decode_tokens_per_s ? with_range(*s.decode_tokens_per_s, 1) : "–");
  cell(out, any ? std::to_string(s.completion_tokens) : "–");
  cell(out, s.end_to_end_tokens_per_s ? fmt::format("{:.1f}", s.end_to_end_tokens_per_s->median) : "–");
  for (double GapSpread::* field : {&GapSpread::p50, &GapSpread::p95, &GapSpread::p99, &GapSpread::max}) {
    cell(out, s.gaps ? fmt::format("{:.1f}", (*s.gaps).*field) : "–");
  }
  cell(out, s.peak_rss_bytes > 0 ? bytes_text(s.peak_rss_bytes) : "–");
  cell(out, same_text(s.same_text));
  cell(out, runs_text(s));
  out.close();
}

// The rows of one other position, as they are shown.
std::vector<PositionRow> write_position_rows(Html& out, const PageContext& page, const PageTable& table,
                                             QuestionPosition position, std::string_view caption) {
  std::vector<PositionRow> own;
  for (const PositionRow& row : page.positions) {
    if (row.task == table.task && row.context == table.context && row.position == position) own.push_back(row);
  }
  if (own.empty()) return own;
  const char* other = question_position_name(position);
  std::ranges::stable_sort(own, {}, [&](const PositionRow& row) { return page.styles.at(row.spec); });
  const bool scored = std::ranges::any_of(own, [](const PositionRow& r) { return r.score.mean.has_value(); });
  std::vector<std::string> columns = {"cache"};
  if (scored) columns.insert(columns.end(), {"score, seen", other, "difference, 95 %", "verdict"});
  columns.insert(columns.end(), {"nats, seen", other, "difference, 95 %", "verdict", "prompts"});
  open_table(out, caption, columns);
  for (const PositionRow& row : own) {
    open_cache_row(out, page, row.spec);
    if (scored) {
      cell(out, number_or_dash(row.score_seen, 1));
      cell(out, number_or_dash(row.score.mean, 1));
      cell(out, interval_or_dash(row.score, 1));
      verdict_cell(out, row.score.verdict);
    }
    cell(out, row.likelihood_seen ? signed_text(*row.likelihood_seen, 3) : "–");
    cell(out, row.likelihood.mean ? signed_text(*row.likelihood.mean, 3) : "–");
    cell(out, interval_or_dash(row.likelihood, 3));
    verdict_cell(out, row.likelihood.verdict);
    cell(out, std::to_string(row.n));
    out.close();
  }
  close_table(out);
  return own;
}

}  // namespace

void write_solo_table(Html& out, const PageContext& page, const PageTable& table) {
  const auto first = std::ranges::find_if(table.rows, ran_alone);
  if (first == table.rows.end()) return;
  const SoloFigures& about = *(*first)->solo;
  open_table(
      out,
      fmt::format(
          "Each cache alone, in a process of its own, on sample {} of {} prompt token{}: medians (and range) of repeated runs",
          about.sample, grouped(about.prompt_tokens), about.prompt_tokens == 1 ? "" : "s"),
      {"cache", "first token, s", "in company, s", "tokens/s", "answer, tokens", "with the prompt, tokens/s",
       "between tokens: half, ms", "95 %, ms", "99 %, ms", "longest, ms", "most memory", "text as in company", "runs"});
  for (const ReportRow* row : table.rows) {
    if (ran_alone(row)) write_solo_row(out, page, *row);
  }
  close_table(out);
}

// Once, where the question is seen: the sections of the other positions follow.
void write_position_table(Html& out, const PageContext& page, const PageTable& table) {
  if (table.position != QuestionPosition::kSeen) return;
  const std::vector<PositionRow> unseen =
      write_position_rows(out, page, table, QuestionPosition::kUnseen,
                          "Question seen or unseen when the cache is sealed; differences of the same cache");
  if (!unseen.empty()) out.element("p", position_floor(unseen), {{"class", "small"}});
  const std::vector<PositionRow> second =
      write_position_rows(out, page, table, QuestionPosition::kSecond,
                          "What choosing rows for one question cost the next one: question seen, or asked second; differences of "
                          "the loss to full");
  if (!second.empty()) out.element("p", second_question_note(), {{"class", "small"}});
}

}  // namespace kvartet
