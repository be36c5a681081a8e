// The claims of the paper on offloading (YAKV; offloading.md 9.3, 13.1): one function each.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/evidence.h"

namespace kvartet {
namespace {

constexpr const char* kPreset = "offloading-paper";

// Tasks whose answer takes one look-up.
bool is_single_needle(const std::string& task) {
  return task.starts_with("needle:") || task == "needle" || task.starts_with("ruler/niah_single");
}

// Tasks whose answer takes many look-ups (offloading.md 13.1).
bool is_intensive(const std::string& task) {
  for (const char* name :
       {"multineedle", "text2json", "codebase", "contracts", "needlebench/", "longproc/", "loong", "ruler/niah_multi"}) {
    if (task.starts_with(name)) return true;
  }
  return false;
}

PairFilter intensive() {
  return [](const OutcomePair& p) { return is_intensive(p.mine->key.task); };
}

struct Case {
  const Evidence& evidence;
  const Roles& roles;
  const std::string& spec(const std::string& role) const { return role == kReference ? kReference : roles.at(role); }
  std::string command() const { return bench_command(evidence.results(), kPreset, {}, ""); }

  Part likelihood(const std::string& mine, const std::string& other, const PairFilter& keep) const {
    return {fmt::format("likelihood of {} minus {}, nats per token", mine, other),
            evidence.interval(spec(mine), spec(other), likelihood_difference, ScoreKind::kMeasurement, keep)};
  }
};

// "It loses on a and b." of the tasks whose own interval lies below 0.
std::string where_it_loses(const Case& c, const std::string& mine, const std::string& other) {
  std::set<std::string> tasks;
  for (const StoredTask& t : c.evidence.results().tasks) tasks.insert(t.task);
  std::string out;
  bool is_told = false;
  for (const std::string& task : tasks) {
    const Part part = c.likelihood(mine, other, [&](const OutcomePair& p) { return p.mine->key.task == task; });
    if (!is_enough(part.interval)) continue;
    is_told = true;
    if (part.interval.high < 0)
      out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", task, signed_text(part.interval.mean, 3));
  }
  if (!is_told) return fmt::format(" No task by itself has the {} documents that would tell.", kMinimumPairs);
  return out.empty() ? " No task by itself shows a loss." : fmt::format(" By task it loses on {}.", out);
}

// `worse` loses likelihood against `better` on context-intensive tasks.
ClaimRow loses_to(const Case& c, const std::string& claim, const std::string& worse, const std::string& better) {
  const std::string rule = fmt::format(
      "On context-intensive tasks the reference answers are less likely under {} than under {}, with the whole 95 % interval of "
      "the "
      "paired difference; not reproduced when the interval lies above 0 or within ±0.05 nats per token.",
      worse, better);
  if (const std::string missing = missing_roles(c.roles, {worse, better}); !missing.empty())
    return not_run(claim, rule, missing, c.command());
  Part part = c.likelihood(better, worse, intensive());
  part.result = judge_above(part.interval, kLikelihoodMargin);
  ClaimRow row = decide_all(claim, rule, {part}, c.command());
  if (row.n >= kMinimumPairs) row.reason += where_it_loses(c, worse, better);
  return row;
}

ClaimRow quantized_keys_beat_low_rank(const Case& c) {
  ClaimRow row = loses_to(c, "Quantized keys beat low-rank keys at equal bytes.", "low-rank keys", "2-bit keys");
  row.rule += " The quantized cache must take no more bytes (2 % for padding).";
  if (row.n < kMinimumPairs) return row;
  double low_rank = 0;
  double quantized = 0;
  for (const OutcomePair& p : c.evidence.pairs(c.spec("2-bit keys"), c.spec("low-rank keys"), intensive())) {
    quantized += static_cast<double>(p.mine->allocated_bytes);
    low_rank += static_cast<double>(p.other->allocated_bytes);
  }
  if (quantized > 1.02 * low_rank) {
    row.result = ClaimResult::kNotRun;
    row.reason = fmt::format("The quantized cache takes {:.2f} times the bytes of the low-rank one: these are not equal bytes.",
                             quantized / low_rank);
    row.to_run = bench_command(c.evidence.results(), kPreset, {"oracle:keys=svd,rank=RANK"}, "") + ", with a larger RANK";
  }
  return row;
}

ClaimRow near_full(const Case& c, const std::string& claim, const std::string& role) {
  const std::string rule = fmt::format(
      "On context-intensive tasks the likelihood under {} is within ±0.05 nats per token of full's with its whole 95 % interval; "
      "not "
      "reproduced when it excludes 0 and reaches beyond.",
      role);
  if (const std::string missing = missing_roles(c.roles, {role}); !missing.empty())
    return not_run(claim, rule, missing, c.command());
  Part part = c.likelihood(role, kReference, intensive());
  part.result = judge_equal(part.interval, kLikelihoodMargin);
  return decide_all(claim, rule, {part}, c.command());
}

ClaimRow single_needles_hide_it(const Case& c) {
  const std::string claim = "Tests with a single needle hide what offloading loses.";
  const std::string rule =
      "Under ShadowKV, single-needle tasks keep their score (not below full by more than 5 points, or a tenth of full's score "
      "where that is less) while context-intensive tasks "
      "lose more than "
      "0.05 nats per token, each with its whole 95 % interval.";
  if (const std::string missing = missing_roles(c.roles, {"ShadowKV"}); !missing.empty())
    return not_run(claim, rule, missing, c.command());
  const PairFilter single = [](const OutcomePair& p) { return is_single_needle(p.mine->key.task); };
  Part needle{"score of ShadowKV minus full on single-needle tasks, points",
              c.evidence.interval(c.spec("ShadowKV"), kReference, score_difference, ScoreKind::kCount, single)};
  needle.scale = 100;
  needle.decimals = 1;
  needle.result = judge_no_less(needle.interval, score_margin(c.evidence.mean_score(c.spec("ShadowKV"), kReference, single)));
  Part work = c.likelihood(kReference, "ShadowKV", intensive());
  work.result = judge_above(beyond(work.interval, kLikelihoodMargin), 0);
  return decide_all(claim, rule, {needle, work}, c.command());
}

}  // namespace

Roles offloading_roles(const StoredResults& results) {
  Roles roles;
  for (const std::string& spec : specs_of(results)) {
    const std::optional<SpecKeys> keys = spec_keys(spec);
    if (!keys) continue;
    const std::string chunk = keys->key("chunk");
    const std::string index = keys->key("index");
    const std::string stored = keys->key("keys");
    if (keys->name == "oracle" && chunk == "1") {
      if (stored == "f16") roles.try_emplace("oracle", spec);
      if (stored == "svd") roles.try_emplace("low-rank keys", spec);
      if (stored == "higgs2") roles.try_emplace("2-bit keys", spec);
    }
    if (keys->name == "select" && stored == "f16") {
      if (chunk == "8" && index == "bf16") roles.try_emplace("chunk-8 landmarks", spec);
      if (chunk == "1" && index == "higgs2") roles.try_emplace("2-bit landmarks", spec);
      if (chunk == "1" && index == "higgs1") roles.try_emplace("1-bit landmarks", spec);
      if (chunk == "1" && index == "residual") roles.try_emplace("residual landmarks", spec);
    }
    if (keys->name == "shadowkv") roles.try_emplace("ShadowKV", spec);
    if (keys->name == "yakv") roles.try_emplace("YAKV", spec);
  }
  return roles;
}

std::vector<ClaimRow> offloading_claims(const Evidence& evidence, const Roles& roles, const StoredResults* other) {
  const Case c{evidence, roles};
  return {loses_to(c, "Keys of low rank (160 of 1,024, or the same share) lose.", "low-rank keys", "oracle"),
          loses_to(c, "Landmarks of 8-token chunks are unreliable against the oracle.", "chunk-8 landmarks", "oracle"),
          quantized_keys_beat_low_rank(c),
          near_full(c, "Landmarks per token at 2 bits come near full attention.", "2-bit landmarks"),
          near_full(c, "YAKV is close to lossless on context-intensive work.", "YAKV"),
          loses_to(c, "ShadowKV loses against YAKV on context-intensive work.", "ShadowKV", "YAKV"),
          loses_to(c, "4-bit landmarks with 1-bit residuals repair what 1-bit landmarks lose.", "1-bit landmarks",
                   "residual landmarks"),
          single_needles_hide_it(c),
          family_claim(evidence, roles, other)};
}

}  // namespace kvartet
