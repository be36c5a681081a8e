// The flat rows of a benchmark: one per cell (task, context, position of the question) and cache, computed from the stored
// outcomes.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "report/timing.h"
#include "results/paired.h"
#include "results/records.h"

namespace kvartet {

// A measure of one cache with its paired difference to `full`. Scores are in points (0..100), likelihoods in nats per
// gold token. `difference`, `low`, `high` are absent for `full` itself and where `full` has not run.
struct Measured {
  std::optional<double> mean;
  std::optional<double> difference;
  std::optional<double> low;
  std::optional<double> high;
  std::optional<double> reference;  // of a score: mean of `full` over the pairs
  double margin = 0;                // differences within +-margin count as the same
  Verdict verdict = Verdict::kNone;
};

// From the values and from the differences of the pairs, both in [0, 1] for scores. `compared`: there is a `full` to
// compare with, and this is not it.
Measured measured_from(std::span<const double> values, const PairedDifferences& differences, bool compared, ScoreKind kind,
                       double scale, double margin);

// min, quartiles and max of the generated tokens.
struct LengthSpread {
  double min = 0;
  double q1 = 0;
  double median = 0;
  double q3 = 0;
  double max = 0;
};

struct ReportRow {
  std::string task;
  std::string metric;
  int context = 0;
  QuestionPosition position = QuestionPosition::kSeen;
  std::string spec;
  int n = 0;          // samples completed
  int documents = 0;  // that they are about: fewer where several questions share one, and what intervals rest on
  int failed = 0;     // samples that ended in an error: counted, never left out silently
  int paired = 0;     // samples that both this cache and `full` completed
  std::string first_error;

  Measured score;
  Measured likelihood;
  bool weak = false;  // of `full` only: the score says little about caches here (report/cautions.h)

  // Means over completed samples; rates and times are medians.
  double prompt_tokens = 0;
  double completion_tokens = 0;
  double ttft_s = 0;
  double prefill_s = 0;
  double compress_s = 0;
  std::optional<double> decode_tokens_per_s;  // absent: no sample had two tokens
  bool shared = false;                        // timed together with other caches, or other questions, not alone
  std::set<std::int64_t> runs;                // RunRecord::id of the samples
  bool other_company = false;                 // shared, but not with `full` of the same table: no time to hold against full's
  double compression_ratio = 0;               // f16 / allocated, end of prefill
  double fast_ratio = 0;                      // f16 / allocated in the fast tier
  double end_compression_ratio = 0;           // the same after the last token
  double end_fast_ratio = 0;
  LengthSpread lengths;           // of the answers, in tokens
  double cut_off = 0;             // share of the answers that ended at the length limit
  std::optional<GapSpread> gaps;  // absent: not stored, or no answer had two tokens
  double live_bytes = 0;
  double allocated_bytes = 0;
  double fast_bytes = 0;  // of them in memory; the rest is on slower tiers
  double end_allocated_bytes = 0;
  double rows_kept = 0;
  double acted = 0;                 // share of samples in which the cache dropped or shortened anything
  std::optional<SoloFigures> solo;  // the cache alone; absent: no such run

  Cell cell() const { return {task, context, position}; }
};

// What stands for a cache's speed: its own where it ran alone, else what all caches shared, which is marked.
struct ShownTimes {
  double ttft_s = 0;
  std::optional<double> decode_tokens_per_s;
  bool shared = false;
};
ShownTimes shown_times(const ReportRow& row);

// Behind a time: "" the cache's own, "*" shared with full, "†" shared in another run than full's. Of the times measured in
// company; and of those that stand for the cache's speed (shown_times).
const char* shared_mark(const ReportRow& row);
const char* times_mark(const ReportRow& row);

// times_compare() for the shared times of whole rows: both alone, or all samples of both from the same runs.
bool shared_times_compare(const ReportRow& a, const ReportRow& b);

// In the order of the outcomes (task, context, cache). `full_spec` names the reference.
std::vector<ReportRow> report_rows(const StoredResults& results, const std::string& full_spec = "full");

// A number, or null where there is none.
nlohmann::json optional_json(const std::optional<double>& x);

// {"rows": [...], "runs": [...], "positions": [...], "caveats": [...]}: DESIGN 6, docs/formats/results.md.
nlohmann::json report_json(const StoredResults& results, std::span<const ReportRow> rows);

// The rows of one cell: what one table shows.
struct RowTable {
  Cell cell;
  std::vector<const ReportRow*> rows;
};
// Of the rows for which `keep` holds; tables and their rows in the order in which they are first met. Keeps pointers into `rows`.
std::vector<RowTable> tables_of(
    std::span<const ReportRow> rows, const std::function<bool(const ReportRow&)>& keep = [](const ReportRow&) { return true; });

std::string cell_name(const Cell& cell);  // "needle at 2048 tokens", "needle at 2048 tokens, second question"

// What a reader must know before comparing rows: failures, several machines, shared timing. One sentence each.
std::vector<std::string> report_caveats(const StoredResults& results, std::span<const ReportRow> rows);

}  // namespace kvartet
