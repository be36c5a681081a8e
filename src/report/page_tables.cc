// The tables of one (task, context), and what was run.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/counted.h"
#include "report/page_parts.h"
#include "report/token_buckets.h"

namespace kvartet {
namespace {

// The other columns hold numbers.
constexpr std::array<std::string_view, 7> kWordColumns = {
    "verdict", "answer", "cache", "here", "of what, and why", "what would change it", "exact spec, for --kv"};

std::string share_text(double share) { return fmt::format("{:.0f} %", 100 * share); }

void write_main_table(Html& out, const PageContext& page, const PageTable& table) {
  const bool scored = std::ranges::any_of(table.rows, [](const ReportRow* r) { return r->score.mean.has_value(); });
  const bool shared = std::ranges::any_of(table.rows, [](const ReportRow* r) { return shown_times(*r).shared; });
  std::vector<std::string> columns = {"cache"};
  if (scored) columns.insert(columns.end(), {"score", "to full, 95 %", "verdict"});
  columns.insert(columns.end(), {"nats", "to full, 95 %", "verdict", "times smaller", "in memory", "first token, s", "tokens/s",
                                 "acted", "samples"});
  open_table(out, fmt::format("Quality, memory and time{}", shared ? "; * time shared by all caches" : ""), columns);
  for (const ReportRow* row : table.rows) {
    const ReportRow& r = *row;
    open_cache_row(out, page, r.spec);
    if (scored) {
      cell(out, number_or_dash(r.score.mean, 1));
      cell(out, interval_or_dash(r.score, 1));
      verdict_cell(out, r.score.verdict);
    }
    cell(out, r.likelihood.mean ? signed_text(*r.likelihood.mean, 3) : "–");
    cell(out, interval_or_dash(r.likelihood, 3));
    verdict_cell(out, r.likelihood.verdict);
    cell(out, r.n > 0 ? fmt::format("{:.2f}", r.compression_ratio) : "–");
    cell(out, r.n > 0 ? fmt::format("{:.2f}", r.fast_ratio) : "–");
    const ShownTimes times = shown_times(r);
    const char* mark = times_mark(r);
    cell(out, r.n > 0 ? fmt::format("{:.2f}{}", times.ttft_s, mark) : "–");
    cell(out, times.decode_tokens_per_s ? fmt::format("{:.1f}{}", *times.decode_tokens_per_s, mark) : "–");
    cell(out, r.n > 0 ? share_text(r.acted) : "–");
    cell(out, r.failed > 0 ? fmt::format("{}, {} failed", r.n, r.failed) : std::to_string(r.n));
    out.close();
  }
  close_table(out);
}

void write_action_table(Html& out, const PageContext& page, const PageTable& table) {
  open_table(out, "What each cache did, means over the samples",
             {"cache", "prompt tokens", "rows kept", "of the prompt", "live after the prompt", "allocated", "in memory",
              "on slower tiers", "allocated at the end", "sealing, s"});
  for (const ReportRow* row : table.rows) {
    const ReportRow& r = *row;
    if (r.n == 0) continue;
    open_cache_row(out, page, r.spec);
    cell(out, grouped(r.prompt_tokens));
    cell(out, grouped(r.rows_kept));
    cell(out, r.prompt_tokens > 0 ? share_text(r.rows_kept / r.prompt_tokens) : "–");
    cell(out, bytes_text(r.live_bytes));
    cell(out, bytes_text(r.allocated_bytes));
    cell(out, bytes_text(r.fast_bytes));
    cell(out, r.allocated_bytes > r.fast_bytes ? bytes_text(r.allocated_bytes - r.fast_bytes) : "–");
    cell(out, bytes_text(r.end_allocated_bytes));
    cell(out, fmt::format("{:.3f}", r.compress_s));
    out.close();
  }
  close_table(out);
}

// A box plot as wide as the longest answer of the table.
void write_spread(Html& out, const LengthSpread& spread, double longest) {
  const auto x = [&](double tokens) { return fmt::format("{:.1f}", 2 + 116 * (longest > 0 ? tokens / longest : 0)); };
  out.open("svg", {{"class", "spread"}, {"viewBox", "0 0 120 16"}, {"aria-hidden", "true"}});
  out.element("line", "", {{"class", "interval"}, {"x1", x(spread.min)}, {"y1", "8"}, {"x2", x(spread.max)}, {"y2", "8"}});
  const double width = 116 * (longest > 0 ? (spread.q3 - spread.q1) / longest : 0);
  out.element("rect", "",
              {{"class", "box"},
               {"x", x(spread.q1)},
               {"y", "3"},
               {"width", fmt::format("{:.1f}", std::max(1.0, width))},
               {"height", "10"}});
  out.element("line", "", {{"class", "middle"}, {"x1", x(spread.median)}, {"y1", "2"}, {"x2", x(spread.median)}, {"y2", "14"}});
  out.close();
}

void write_length_table(Html& out, const PageContext& page, const PageTable& table) {
  double longest = 0;
  for (const ReportRow* row : table.rows) longest = std::max(longest, row->lengths.max);
  open_table(out, "How long the answers are, in tokens",
             {"cache", "shortest", "quarter", "half", "three quarters", "longest", "spread", "cut at the limit"});
  for (const ReportRow* row : table.rows) {
    if (row->n == 0) continue;
    const LengthSpread& l = row->lengths;
    open_cache_row(out, page, row->spec);
    for (const double tokens : {l.min, l.q1, l.median, l.q3, l.max}) cell(out, grouped(tokens));
    out.open("td", {{"class", "picture s" + std::to_string(page.styles.at(row->spec) % kChartStyles)}});
    write_spread(out, l, longest);
    out.close();
    cell(out, share_text(row->cut_off));
    out.close();
  }
  close_table(out);
}

void write_gap_table(Html& out, const PageContext& page, const PageTable& table) {
  const bool any = std::ranges::any_of(table.rows, [](const ReportRow* r) { return r->gaps.has_value(); });
  if (!any) return;
  open_table(out, "Time between two tokens, in milliseconds (95 % and 99 % of the gaps are shorter than …)",
             {"cache", "half", "95 %", "99 %", "longest"});
  for (const ReportRow* row : table.rows) {
    if (!row->gaps) continue;
    open_cache_row(out, page, row->spec);
    for (const double ms : {row->gaps->p50, row->gaps->p95, row->gaps->p99, row->gaps->max}) {
      cell(out, fmt::format("{:.1f}{}", ms, shared_mark(*row)));
    }
    out.close();
  }
  close_table(out);
}

// The compression paper's system table: only sets whose prompts differ much in length have it.
void write_bucket_table(Html& out, const PageContext& page, const PageTable& table) {
  bool open = false;
  for (const TokenBucket& bucket : token_buckets(page.results)) {
    for (const ReportRow& r : bucket.rows) {
      if (r.task != table.task || r.context != table.context || r.n == 0) continue;
      if (!open) {
        open_table(out, "Memory and time by the prompt's tokens",
                   {"cache", "prompt tokens", "samples", "mean prompt", "times smaller", "at the end", "first token, s",
                    "tokens/s", "acted"});
        open = true;
      }
      open_cache_row(out, page, r.spec);
      cell(out, bucket.name);
      cell(out, std::to_string(r.n));
      cell(out, grouped(r.prompt_tokens));
      cell(out, fmt::format("{:.2f}", r.compression_ratio));
      cell(out, fmt::format("{:.2f}", r.end_compression_ratio));
      cell(out, fmt::format("{:.2f}{}", r.ttft_s, shared_mark(r)));
      cell(out, r.decode_tokens_per_s ? fmt::format("{:.1f}{}", *r.decode_tokens_per_s, shared_mark(r)) : "–");
      cell(out, share_text(r.acted));
      out.close();
    }
  }
  if (open) close_table(out);
}

void write_failures(Html& out, const PageContext& page, const PageTable& table) {
  for (const ReportRow* row : table.rows) {
    if (row->failed == 0) continue;
    out.open("p", {{"class", "failure"}, {"data-spec", row->spec}});
    out.text(fmt::format("{} failed on {} of {}; the first: ", page.name(row->spec), row->failed,
                         counted(row->n + row->failed, "sample")));
    out.element("q", row->first_error).close();
  }
}

}  // namespace

void open_table(Html& out, std::string_view caption, const std::vector<std::string>& columns) {
  out.open("div", {{"class", "scroll"}, {"tabindex", "0"}, {"role", "region"}, {"aria-label", std::string(caption)}});
  out.open("table").element("caption", caption);
  out.open("thead").open("tr");
  for (const std::string& column : columns) {
    const bool words = std::ranges::find(kWordColumns, column) != kWordColumns.end();
    out.element("th", column, {{"scope", "col"}, {"class", words ? "words-below" : "numbers-below"}});
  }
  out.close().close().open("tbody");
}

void close_table(Html& out) { out.close().close().close(); }

void open_cache_row(Html& out, const PageContext& page, const std::string& spec) {
  out.open("tr", {{"data-spec", spec}});
  out.open("th", {{"scope", "row"}, {"title", spec}});
  write_mark(out, page.styles.at(spec), page.reference(spec));
  out.open("span");
  write_name(out, page.name(spec));
  out.close().close();
}

void write_name(Html& out, std::string_view name) {
  while (!name.empty()) {
    const std::size_t cut = std::min(name.find_first_of(":,+/"), name.size() - 1) + 1;
    out.text(name.substr(0, cut));
    name.remove_prefix(cut);
    if (!name.empty()) out.empty("wbr");
  }
}

// A range may break in two lines, and no more.
void cell(Html& out, std::string_view text) {
  if (text.find(" to ") == std::string_view::npos) {
    out.element("td", text);
  } else {
    out.element("td", text, {{"class", "range"}});
  }
}

void verdict_cell(Html& out, Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame: out.element("td", "= same", {{"class", "verdict same"}}); return;
    case Verdict::kBetter: out.element("td", "▲ better", {{"class", "verdict better"}}); return;
    case Verdict::kWorse: out.element("td", "▼ worse", {{"class", "verdict worse"}}); return;
    case Verdict::kNotMeasurable: out.element("td", "? n too small", {{"class", "verdict open"}}); return;
    case Verdict::kNone: cell(out, "–"); return;
  }
}

std::string interval_or_dash(const Measured& m, int decimals) {
  return m.low && m.high ? interval_text(*m.low, *m.high, decimals) : "–";
}

std::string number_or_dash(const std::optional<double>& x, int decimals) {
  return x ? fmt::format("{:.{}f}", *x, decimals) : "–";
}

void write_task_section(Html& out, const PageContext& page, const PageTable& table) {
  out.open("section", {{"class", "task"},
                       {"aria-labelledby", table.id},
                       {"data-task", table.task},
                       {"data-context", std::to_string(table.context)}});
  out.element("h2", fmt::format("{} at {} tokens{}", table.task, grouped(table.context), question_suffix(table.position)),
              {{"id", table.id}});
  const ReportRow& first = *table.rows.front();
  int samples = 0;
  for (const ReportRow* row : table.rows) samples = std::max(samples, row->n + row->failed);
  std::string about = counted(samples, "sample");
  if (first.n > 0) {
    about += fmt::format(", {} prompt tokens on average in a room of {} for prompt and answer", grouped(first.prompt_tokens),
                         grouped(table.context));
  }
  if (!first.metric.empty())
    about += fmt::format("; kind of work: {}; score: {}", workload_name(workload_of(first.metric)), first.metric);
  out.element("p", about + ".");
  const TableCaution caution = caution_of(table.rows);
  if (caution.weak != nullptr) out.element("p", "Careful: " + weak_text(*caution.weak->score.mean), {{"class", "caution"}});
  if (caution.many_cut()) out.element("p", "Careful: " + cut_text(caution), {{"class", "caution"}});
  write_main_table(out, page, table);
  write_failures(out, page, table);
  write_solo_table(out, page, table);
  write_position_table(out, page, table);
  out.open("div", {{"class", "charts"}});
  const bool likelihood = std::ranges::any_of(table.rows, [](const ReportRow* r) { return r->likelihood.mean.has_value(); });
  const bool scored = std::ranges::any_of(table.rows, [](const ReportRow* r) { return r->score.mean.has_value(); });
  for (const bool rate : {false, true}) {
    const std::string price = rate ? "decode rate" : "compression";
    if (likelihood)
      write_tradeoff(out, page, table, {table.id + (rate ? "-nr" : "-nc"), "Likelihood against " + price, true, rate});
    if (scored) write_tradeoff(out, page, table, {table.id + (rate ? "-sr" : "-sc"), "Score against " + price, false, rate});
  }
  out.close();
  out.open("details").element("summary", "What each cache did, length of the answers, time between tokens");
  write_action_table(out, page, table);
  write_length_table(out, page, table);
  write_gap_table(out, page, table);
  write_bucket_table(out, page, table);
  out.close();
  write_samples(out, page, table);
  out.close();
}

void write_run_section(Html& out, const PageContext& page, const std::vector<std::string>& folders) {
  out.open("section", {{"aria-labelledby", "run"}}).element("h2", "What was run", {{"id", "run"}});
  if (!page.results.runs.empty()) {
    const RunIdentity& id = page.results.runs.front().identity;
    out.open("dl");
    const auto fact = [&](const char* name, const std::string& value) { out.element("dt", name).element("dd", value); };
    fact("Model", fmt::format("{} ({})", id.model_name, id.model_shape));
    fact("Hash of the model file", id.model_hash);
    fact("Seed", std::to_string(id.seed));
    fact("Parameters", parameters_text(page.results));
    fact("Kvartet version", id.version);
    std::string from;
    for (const std::string& folder : folders) from += (from.empty() ? "" : ", ") + folder;
    if (!from.empty()) fact("Results folders", from);
    out.close();
  }
  open_table(out, "Runs", {"started", "processor", "cores", "memory", "threads", "compiler"});
  for (const RunRecord& run : page.results.runs) {
    out.open("tr").element("th", run.started, {{"scope", "row"}});
    cell(out, run.machine.cpu);
    cell(out, std::to_string(run.machine.cores));
    cell(out, bytes_text(run.machine.memory_bytes));
    cell(out, std::to_string(run.threads));
    cell(out, run.machine.compiler);
    out.close();
  }
  close_table(out);
  open_table(out, "Caches", {"cache", "exact spec, for --kv"});
  for (const std::string& spec : page.specs) {
    open_cache_row(out, page, spec);
    out.open("td").element("code", spec).close().close();
  }
  close_table(out);
  out.close();
}

void write_guide(Html& out) {
  out.open("section", {{"aria-labelledby", "guide"}}).element("h2", "How to read this", {{"id", "guide"}});
  constexpr std::array<std::pair<const char*, const char*>, 11> kTerms = {{
      {"Fair comparison", "Every cache saw the same token ids in the same order; the prompt's hash is kept with every sample."},
      {"at 2,048 tokens",
       "The room for prompt and answer together, which --context asks for, not the length of the documents: those are as long as "
       "they "
       "are, and what exceeds the room loses its middle."},
      {"score", "The task's own measure on the text the model wrote freely, 0 to 100 points."},
      {"nats",
       "Mean natural log of the probability of each token of the reference answer, after the same prompt; nearer to 0 is better. "
       "It needs no luck "
       "with wording, so it tells caches apart with few samples."},
      {"to full, 95 %",
       "The 95 % interval of the paired difference to the cache 'full' (every row in f16), over the samples both completed."},
      {"verdict",
       "'same' when the whole interval lies within ±0.05 nats, or for a score within ±5 points or a tenth of full's own score, "
       "whichever is less (at least ±0.5); otherwise 'better' or 'worse' when it excludes 0; otherwise there are too few samples "
       "to say."},
      {"Short answer",
       "A cache loses when a verdict is 'worse' over all samples of that kind of work or in any one table. It is as good as full "
       "when score "
       "and likelihood are the same over all samples, and has no measured loss when the likelihood is the same but the samples "
       "are too few "
       "to say it of the score. The answer is the smallest cache that does not lose."},
      {"Full itself is weak",
       "It scores below half of the points, and a cache that got nothing right would not be found worse on these samples (with "
       "fewer "
       "than five documents: it has fewer than one in five right). The score then says little; the likelihood may still."},
      {"times smaller",
       "f16 bytes of the same tokens divided by the bytes really allocated after the prompt; 'in memory' counts the fast tier "
       "alone."},
      {"first token",
       "Prefill, the cache's own sealing and the first token. Times with * come from one prefill and one decode batch for all "
       "caches; those without it are medians of the cache alone, on one prompt, in a process of its own."},
      {"Line in the charts",
       "The frontier: no other cache is better in both directions. The shaded band is what counts as the same as full."},
  }};
  out.open("dl");
  for (const auto& [term, meaning] : kTerms) out.element("dt", term).element("dd", meaning);
  out.close().close();
}

}  // namespace kvartet
