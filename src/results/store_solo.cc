// Solo runs in the store: one row each, written as it comes.
#include <fmt/format.h>

#include "results/outcome_check.h"
#include "results/store.h"
#include "results/store_schema.h"

namespace kvartet {
namespace {

constexpr const char* kSoloColumns =
    "task, context, sample, question_position, spec, repeat, error, text, finish_reason, completion_tokens, ttft_s, prefill_s, "
    "compress_s, decode_tokens_per_s, end_to_end_tokens_per_s, token_gaps_ms, peak_rss_bytes, weight_bytes, run";

Result<SoloRun> read_solo(Statement& row) {
  SoloRun s;
  KV_ASSIGN(s.key, read_key(row));
  s.spec = row.text();
  s.repeat = static_cast<int>(row.integer());
  s.error = row.text();
  s.text = row.text();
  s.finish_reason = row.text();
  s.completion_tokens = static_cast<int>(row.integer());
  s.ttft_s = row.real();
  s.prefill_s = row.real();
  s.compress_s = row.real();
  s.decode_tokens_per_s = row.real();
  s.end_to_end_tokens_per_s = row.real();
  s.token_gaps_json = row.text();
  s.peak_rss_bytes = row.integer();
  s.weight_bytes = row.integer();
  s.run = row.integer();
  return s;
}

}  // namespace

Status Store::finish_solo(const SoloRun& solo) {
  if (has_possible_figures(solo)) return put_solo(solo, run_id_);
  return internal_error(
      fmt::format("The figures measured for sample {} of {} through {} alone cannot be; the run was not stored.", solo.key.sample,
                  solo.key.task, solo.spec));
}

Status Store::put_solo(const SoloRun& s, std::int64_t run) {
  KV_ASSIGN(
      Statement insert,
      database_.prepare(fmt::format(
          "INSERT OR REPLACE INTO solo({}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kSoloColumns)));
  bind_key(insert, s.key).bind(s.spec).bind(s.repeat).bind(s.error).bind(s.text).bind(s.finish_reason).bind(s.completion_tokens);
  insert.bind(s.ttft_s).bind(s.prefill_s).bind(s.compress_s).bind(s.decode_tokens_per_s).bind(s.end_to_end_tokens_per_s);
  insert.bind(s.token_gaps_json).bind(s.peak_rss_bytes).bind(s.weight_bytes).bind(run);
  return insert.run();
}

Status Store::merge_solo(std::span<const SoloRun> theirs, const std::map<std::int64_t, std::int64_t>& own_number) {
  for (const SoloRun& solo : theirs) {
    KV_ASSIGN(Statement there,
              database_.prepare(fmt::format("SELECT error FROM solo WHERE {} AND spec = ? AND repeat = ?", kThisSample)));
    KV_ASSIGN(const bool known, bind_key(there, solo.key).bind(solo.spec).bind(solo.repeat).step());
    const bool better = !known || (!there.text().empty() && !solo.failed());
    const auto run = own_number.find(solo.run);
    if (better) KV_TRY(put_solo(solo, run == own_number.end() ? 0 : run->second));
  }
  return {};
}

Result<std::vector<SoloRun>> Store::load_solo() {
  std::vector<SoloRun> out;
  if (format_ < 3) return out;  // older formats have no such table
  KV_ASSIGN(Statement row,
            database_.prepare(fmt::format(
                "SELECT {} FROM solo LEFT JOIN (SELECT task AS t, ordinal AS task_ordinal FROM tasks) ON t = task "
                "LEFT JOIN (SELECT spec AS c, ordinal AS cache_ordinal FROM caches) ON c = spec "
                "ORDER BY task_ordinal, context, question_position = 'second', question_position, sample, cache_ordinal, repeat",
                kSoloColumns)));
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) return out;
    KV_ASSIGN(SoloRun solo, read_solo(row));
    out.push_back(std::move(solo));
    if (has_possible_figures(out.back())) continue;
    const SoloRun& s = out.back();
    return damaged_store(store_path(directory_), fmt::format("the figures of sample {} of {} through {} alone, run {}, cannot be",
                                                             s.key.sample, s.key.task, s.spec, std::int64_t{s.repeat} + 1));
  }
}

}  // namespace kvartet
