#include "report/rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/counted.h"
#include "report/cautions.h"
#include "report/names.h"
#include "report/pairing.h"
#include "report/positions.h"
#include "report/token_buckets.h"
#include "results/documents.h"

namespace kvartet {
namespace {

double mean(std::span<const double> x) {
  double sum = 0;
  for (double v : x) sum += v;
  return x.empty() ? 0 : sum / static_cast<double>(x.size());
}

double ratio(std::int64_t f16, std::int64_t bytes) {
  return bytes > 0 ? static_cast<double>(f16) / static_cast<double>(bytes) : 0;
}

int count_documents(const std::vector<const Outcome*>& done, const DocumentNumbers& documents) {
  std::set<int> different;
  for (const Outcome* o : done) different.insert(documents.of(o->key));
  return static_cast<int>(different.size());
}

void fill_system_figures(ReportRow& row, const std::vector<const Outcome*>& done, const std::map<SampleKey, int>& prompt_tokens) {
  const auto collect = [&](auto value) {
    std::vector<double> out;
    for (const Outcome* o : done) out.push_back(static_cast<double>(value(*o)));
    return out;
  };
  row.prompt_tokens = mean(collect([&](const Outcome& o) { return prompt_tokens.at(o.key); }));
  row.completion_tokens = mean(collect([](const Outcome& o) { return o.completion_tokens; }));
  row.ttft_s = median(collect([](const Outcome& o) { return o.ttft_s; }));
  row.prefill_s = median(collect([](const Outcome& o) { return o.prefill_s; }));
  row.compress_s = median(collect([](const Outcome& o) { return o.compress_s; }));
  row.compression_ratio = mean(collect([](const Outcome& o) { return ratio(o.f16_bytes, o.allocated_bytes); }));
  row.fast_ratio = mean(collect([](const Outcome& o) { return ratio(o.f16_bytes, o.fast_bytes); }));
  row.end_compression_ratio = mean(collect([](const Outcome& o) { return ratio(o.end_f16_bytes, o.end_allocated_bytes); }));
  row.end_fast_ratio = mean(collect([](const Outcome& o) { return ratio(o.end_f16_bytes, o.end_fast_bytes); }));
  row.live_bytes = mean(collect([](const Outcome& o) { return o.live_bytes; }));
  row.allocated_bytes = mean(collect([](const Outcome& o) { return o.allocated_bytes; }));
  row.fast_bytes = mean(collect([](const Outcome& o) { return o.fast_bytes; }));
  row.end_allocated_bytes = mean(collect([](const Outcome& o) { return o.end_allocated_bytes; }));
  row.rows_kept = mean(collect([](const Outcome& o) { return o.rows_kept; }));
  row.acted = mean(collect([](const Outcome& o) { return o.acted ? 1 : 0; }));
  std::vector<double> rates;
  for (const Outcome* o : done) {
    row.shared = row.shared || o->shared;
    row.runs.insert(o->run);
    if (o->decode_tokens_per_s > 0) rates.push_back(o->decode_tokens_per_s);
  }
  if (!rates.empty()) row.decode_tokens_per_s = median(rates);
}

void fill_answer_spreads(ReportRow& row, const std::vector<const Outcome*>& done) {
  if (done.empty()) return;
  std::vector<double> tokens;
  std::vector<double> gaps;
  double cut = 0;
  for (const Outcome* o : done) {
    tokens.push_back(o->completion_tokens);
    cut += o->finish_reason == "length" ? 1 : 0;
    const std::vector<double> more = numbers_of(o->token_gaps_json);
    gaps.insert(gaps.end(), more.begin(), more.end());
  }
  row.lengths = {quantile(tokens, 0), quantile(tokens, 0.25), median(tokens), quantile(tokens, 0.75), quantile(tokens, 1)};
  row.cut_off = cut / static_cast<double>(done.size());
  row.gaps = gap_spread(gaps);
}

nlohmann::json gap_json(const std::optional<GapSpread>& gaps, double GapSpread::* field) {
  return gaps ? nlohmann::json((*gaps).*field) : nlohmann::json(nullptr);
}

nlohmann::json spread_json(const std::optional<RunSpread>& spread, double RunSpread::* field) {
  return spread ? nlohmann::json((*spread).*field) : nlohmann::json(nullptr);
}

// null where the cache never ran alone.
nlohmann::json solo_json(const std::optional<SoloFigures>& solo) {
  if (!solo) return nullptr;
  const SoloFigures& s = *solo;
  const auto ttft = [&](double RunSpread::* field) {
    return spread_json(s.runs > 0 ? std::optional(s.ttft_s) : std::nullopt, field);
  };
  return {
      {"runs", s.runs},
      {"failed", s.failed},
      {"first_error", s.first_error},
      {"sample", s.sample},
      {"prompt_tokens", s.prompt_tokens},
      {"completion_tokens", s.completion_tokens},
      {"ttft_s", ttft(&RunSpread::median)},
      {"ttft_low_s", ttft(&RunSpread::low)},
      {"ttft_high_s", ttft(&RunSpread::high)},
      {"prefill_s", s.prefill_s},
      {"compress_s", s.compress_s},
      {"decode_tokens_per_s", spread_json(s.decode_tokens_per_s, &RunSpread::median)},
      {"decode_low_tokens_per_s", spread_json(s.decode_tokens_per_s, &RunSpread::low)},
      {"decode_high_tokens_per_s", spread_json(s.decode_tokens_per_s, &RunSpread::high)},
      {"end_to_end_tokens_per_s", spread_json(s.end_to_end_tokens_per_s, &RunSpread::median)},
      {"token_gap_p50_ms", gap_json(s.gaps, &GapSpread::p50)},
      {"token_gap_p95_ms", gap_json(s.gaps, &GapSpread::p95)},
      {"token_gap_p99_ms", gap_json(s.gaps, &GapSpread::p99)},
      {"token_gap_max_ms", gap_json(s.gaps, &GapSpread::max)},
      {"peak_rss_bytes", s.peak_rss_bytes > 0 ? nlohmann::json(s.peak_rss_bytes) : nlohmann::json(nullptr)},
      {"weight_bytes", s.weight_bytes},
      {"same_text", s.same_text ? nlohmann::json(*s.same_text) : nlohmann::json(nullptr)},
  };
}

nlohmann::json row_json(const ReportRow& r) {
  return {
      {"task", r.task},
      {"metric", r.metric},
      {"context", r.context},
      {"question_position", question_position_name(r.position)},
      {"spec", r.spec},
      {"n", r.n},
      {"documents", r.documents},
      {"failed", r.failed},
      {"paired", r.paired},
      {"first_error", r.first_error},
      {"score", optional_json(r.score.mean)},
      {"difference", optional_json(r.score.difference)},
      {"low", optional_json(r.score.low)},
      {"high", optional_json(r.score.high)},
      {"verdict", verdict_name(r.score.verdict)},
      {"margin", r.score.mean ? nlohmann::json(r.score.margin) : nlohmann::json(nullptr)},
      {"likelihood", optional_json(r.likelihood.mean)},
      {"likelihood_difference", optional_json(r.likelihood.difference)},
      {"likelihood_low", optional_json(r.likelihood.low)},
      {"likelihood_high", optional_json(r.likelihood.high)},
      {"likelihood_verdict", verdict_name(r.likelihood.verdict)},
      {"prompt_tokens", r.prompt_tokens},
      {"completion_tokens", r.completion_tokens},
      {"completion_tokens_min", r.lengths.min},
      {"completion_tokens_q1", r.lengths.q1},
      {"completion_tokens_median", r.lengths.median},
      {"completion_tokens_q3", r.lengths.q3},
      {"completion_tokens_max", r.lengths.max},
      {"cut_off", r.cut_off},
      {"weak", r.weak},
      {"token_gap_p50_ms", gap_json(r.gaps, &GapSpread::p50)},
      {"token_gap_p95_ms", gap_json(r.gaps, &GapSpread::p95)},
      {"token_gap_p99_ms", gap_json(r.gaps, &GapSpread::p99)},
      {"token_gap_max_ms", gap_json(r.gaps, &GapSpread::max)},
      {"ttft_s", r.ttft_s},
      {"prefill_s", r.prefill_s},
      {"compress_s", r.compress_s},
      {"decode_tokens_per_s", optional_json(r.decode_tokens_per_s)},
      {"shared", r.shared},
      {"compression_ratio", r.compression_ratio},
      {"fast_ratio", r.fast_ratio},
      {"end_compression_ratio", r.end_compression_ratio},
      {"end_fast_ratio", r.end_fast_ratio},
      {"live_bytes", r.live_bytes},
      {"allocated_bytes", r.allocated_bytes},
      {"fast_bytes", r.fast_bytes},
      {"end_allocated_bytes", r.end_allocated_bytes},
      {"rows_kept", r.rows_kept},
      {"acted", r.acted},
      {"solo", solo_json(r.solo)},
  };
}

}  // namespace

nlohmann::json optional_json(const std::optional<double>& x) { return x ? nlohmann::json(*x) : nlohmann::json(nullptr); }

Measured measured_from(std::span<const double> values, const PairedDifferences& differences, bool compared, ScoreKind kind,
                       double scale, double margin) {
  Measured out;
  out.margin = margin * scale;
  if (!values.empty()) out.mean = scale * mean(values);
  if (!compared || values.empty()) return out;
  const PairedInterval interval = paired_interval(differences, kind);
  out.verdict = verdict_of(interval, margin);
  if (interval.n > 0) out.difference = scale * interval.mean;
  if (interval.measurable) {
    out.low = scale * interval.low;
    out.high = scale * interval.high;
  }
  return out;
}

namespace {

// Marks the caches whose shared times cannot be held against those of `full` in the same table.
void mark_other_company(std::vector<ReportRow>& rows, const std::string& full_spec) {
  std::map<Cell, const ReportRow*> full;
  for (const ReportRow& r : rows) {
    if (r.spec == full_spec && r.n > 0) full[r.cell()] = &r;
  }
  for (ReportRow& r : rows) {
    const auto reference = full.find(r.cell());
    r.other_company = r.n > 0 && r.shared && reference != full.end() && !shared_times_compare(r, *reference->second);
  }
}

}  // namespace

std::vector<ReportRow> report_rows(const StoredResults& results, const std::string& full_spec) {
  std::map<std::string, std::string> metric_of;
  for (const StoredTask& t : results.tasks) metric_of[t.task] = t.metric;
  std::map<SampleKey, int> prompt_tokens;
  for (const SampleRecord& s : results.samples) prompt_tokens[s.key] = s.prompt_tokens;

  const DocumentNumbers documents(results);
  const std::map<std::pair<Cell, std::string>, SoloFigures> solo = solo_figures(results);

  const References references = references_of(results, full_spec);
  std::set<Cell> compared_cells;
  for (const auto& [key, outcome] : references) compared_cells.insert(key.cell());
  std::vector<std::pair<Cell, std::string>> order;  // as first met
  std::map<std::pair<Cell, std::string>, std::vector<const Outcome*>> outcomes;
  for (const Outcome& o : results.outcomes) {
    auto& list = outcomes[{o.key.cell(), o.spec}];
    if (list.empty()) order.emplace_back(o.key.cell(), o.spec);
    list.push_back(&o);
  }

  std::vector<ReportRow> rows;
  for (const auto& [cell, spec] : order) {
    ReportRow row;
    row.task = cell.task;
    row.context = cell.context;
    row.position = cell.position;
    row.spec = spec;
    row.metric = metric_of[row.task];
    std::vector<const Outcome*> done;
    for (const Outcome* o : outcomes[{cell, spec}]) {
      if (!o->failed()) {
        done.push_back(o);
        continue;
      }
      if (row.failed++ == 0) row.first_error = o->error;
    }
    row.n = static_cast<int>(done.size());
    row.documents = count_documents(done, documents);
    PairedPool pool;
    for (const Outcome* o : done) pool.add(*o, references, documents.of(o->key));
    const bool compared = spec != full_spec && compared_cells.contains(cell);
    if (compared) row.paired = pool.pairs();
    row.score = pool.score(compared, score_kind(row.metric));
    row.likelihood = pool.likelihood(compared);
    if (spec == full_spec) row.weak = is_weak_reference(row, done, references, documents);
    fill_system_figures(row, done, prompt_tokens);
    fill_answer_spreads(row, done);
    if (const auto alone = solo.find({cell, spec}); alone != solo.end()) row.solo = alone->second;
    rows.push_back(std::move(row));
  }
  mark_other_company(rows, full_spec);
  return rows;
}

const char* shared_mark(const ReportRow& row) { return !row.shared ? "" : row.other_company ? "†" : "*"; }

const char* times_mark(const ReportRow& row) { return shown_times(row).shared ? shared_mark(row) : ""; }

ShownTimes shown_times(const ReportRow& row) {
  if (!row.solo || row.solo->runs == 0) return {row.ttft_s, row.decode_tokens_per_s, row.shared};
  const std::optional<RunSpread>& rate = row.solo->decode_tokens_per_s;
  return {row.solo->ttft_s.median, rate ? std::optional(rate->median) : std::nullopt, false};
}

bool shared_times_compare(const ReportRow& a, const ReportRow& b) {
  return a.shared == b.shared && (!a.shared || a.runs == b.runs);
}

std::vector<RowTable> tables_of(std::span<const ReportRow> rows, const std::function<bool(const ReportRow&)>& keep) {
  std::vector<RowTable> tables;
  std::map<Cell, std::size_t> place;
  for (const ReportRow& row : rows) {
    if (!keep(row)) continue;
    const auto [at, fresh] = place.try_emplace(row.cell(), tables.size());
    if (fresh) tables.push_back({row.cell(), {}});
    tables[at->second].rows.push_back(&row);
  }
  return tables;
}

std::string cell_name(const Cell& cell) {
  return fmt::format("{} at {} tokens{}", cell.task, cell.context, question_suffix(cell.position));
}

// Tables whose columns of differences and verdicts are empty.
std::vector<std::string> tables_without_full(std::span<const ReportRow> rows) {
  std::vector<std::string> out;
  for (const RowTable& table : tables_of(rows)) {
    const auto answered = [](const ReportRow* r) { return r->spec == kReference && r->n > 0; };
    if (std::ranges::none_of(table.rows, answered)) out.push_back(cell_name(table.rows.front()->cell()));
  }
  return out;
}

std::vector<std::string> report_caveats(const StoredResults& results, std::span<const ReportRow> rows) {
  std::vector<std::string> out;
  if (const std::vector<std::string> bare = tables_without_full(rows); !bare.empty()) {
    out.push_back(
        fmt::format("There is no answer of full, and so nothing to hold against it and no verdict, on {}; run the same command "
                    "with --kv full.",
                    fmt::join(bare, ", ")));
  }
  const bool shared = std::any_of(rows.begin(), rows.end(), [](const ReportRow& r) { return shown_times(r).shared; });
  if (shared) {
    out.emplace_back(
        "Times and rates marked * come from one prefill and one decode batch shared by all caches, and the prefill of a "
        "document with several questions from the first of them; to compare speed, let each run alone "
        "with 'kvartet bench ... --solo 5', or use 'kvartet speed'.");
  }
  const std::map<std::string, std::string> names = short_names(specs_of(results));
  std::set<std::string> apart;
  for (const ReportRow& r : rows) {
    if (r.other_company) apart.insert(names.at(r.spec));
  }
  if (!apart.empty()) {
    out.push_back(fmt::format(
        "Measured in another run than full, with fewer or more caches in their steps: {}. Their times, marked †, are not to be "
        "held against full's.",
        fmt::join(apart, ", ")));
  }
  const bool few = std::any_of(rows.begin(), rows.end(),
                               [](const ReportRow& r) { return r.solo && r.solo->runs > 0 && r.solo->runs < kEnoughRepeats; });
  if (few) {
    out.push_back(
        fmt::format("Some caches ran alone fewer than {0} times: too few to tell speed from chance; --solo {0} adds the rest.",
                    kEnoughRepeats));
  }
  std::set<std::string> machines;
  std::set<int> threads;
  for (const RunRecord& r : results.runs) {
    machines.insert(r.machine.cpu);
    threads.insert(r.threads);
  }
  if (machines.size() > 1 || threads.size() > 1) {
    out.push_back(
        fmt::format("The runs differ in machine or threads (processors: {}, thread counts: {}): times and rates do not compare.",
                    machines.size(), threads.size()));
  }
  for (const ReportRow& r : rows) {
    if (r.solo) {
      for (std::string& caveat : solo_caveats(fmt::format("{} through {}", cell_name(r.cell()), r.spec), *r.solo))
        out.push_back(std::move(caveat));
    }
    if (r.failed == 0) continue;
    out.push_back(fmt::format("{} through {}: {} of {} failed; the first: {}", cell_name(r.cell()), r.spec, r.failed,
                              counted(r.failed + r.n, "sample"), r.first_error));
  }
  for (std::string& caution : caution_sentences(rows)) out.push_back(std::move(caution));
  for (std::string& caution : prompt_sentences(results)) out.push_back(std::move(caution));
  return out;
}

nlohmann::json report_json(const StoredResults& results, std::span<const ReportRow> rows) {
  nlohmann::json out = {{"rows", nlohmann::json::array()},
                        {"runs", nlohmann::json::array()},
                        {"positions", positions_json(position_rows(results))},
                        {"caveats", report_caveats(results, rows)}};
  for (const ReportRow& r : rows) out["rows"].push_back(row_json(r));
  for (const RunRecord& r : results.runs) {
    out["runs"].push_back({{"model", r.identity.model_name},
                           {"model_hash", r.identity.model_hash},
                           {"model_shape", r.identity.model_shape},
                           {"seed", r.identity.seed},
                           {"parameters", parameters_text(results)},
                           {"version", r.identity.version},
                           {"cpu", r.machine.cpu},
                           {"cores", r.machine.cores},
                           {"memory_bytes", r.machine.memory_bytes},
                           {"compiler", r.machine.compiler},
                           {"threads", r.threads},
                           {"started", r.started}});
  }
  if (nlohmann::json by_tokens = token_buckets_json(results); !by_tokens.empty()) out["token_buckets"] = std::move(by_tokens);
  return out;
}

}  // namespace kvartet
