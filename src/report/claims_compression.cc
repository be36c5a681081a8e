// The claims of the paper on compression (arXiv 2607.05399; compression.md 15): one function each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/counted.h"
#include "report/claims_compression.h"
#include "report/time_ratio.h"

namespace kvartet {
namespace {

constexpr const char* kPreset = "compression-paper";
constexpr double kNearTarget = 0.10;         // CaM's ratio is explained by length within a tenth
constexpr double kLowestUsefulScore = 0.05;  // a kind of work that the model itself cannot do says nothing about caches

// In the paper's order, with the spec that a run without them would take.
const std::vector<std::pair<std::string, std::string>> kPaperMethods = {{"KIVI-2", "kivi:bits=2,group=32,residual=32"},
                                                                        {"KIVI-4", "kivi:bits=4,group=32,residual=32"},
                                                                        {"TurboQuant-3", "turboquant:bits=3"},
                                                                        {"TurboQuant-4", "turboquant:bits=4"},
                                                                        {"SnapKV", "snapkv:budget=0.25"},
                                                                        {"CaM", "cam:target=1024,interval=32"}};

using Case = CompressionCase;

bool is_few_shot(const std::string& task) {
  return task.starts_with("fewshot") || task == "longbench/trec" || task == "longbench/triviaqa" || task == "longbench/samsum";
}

// The mean with its Student interval, whatever the number of samples.
PairedInterval mean_interval(const PairedDifferences& values) { return paired_interval(values, ScoreKind::kMeasurement); }

ClaimRow kivi4_is_the_most_stable(const Case& c) {
  const std::string claim = "KIVI-4 is the most stable method.";
  const std::string rule =
      "Stable is what changes the likelihood of the reference answer least, sample by sample, in either direction: the mean "
      "change "
      "under every other method is greater than under KIVI-4, each with its whole 95 % interval.";
  if (const auto row = c.missing(claim, rule, {"KIVI-4", "SnapKV", "TurboQuant-4"})) return *row;
  std::map<SampleKey, double> stable;
  for (const OutcomePair& p : c.evidence.pairs(c.spec("KIVI-4"), kReference)) {
    if (const auto x = likelihood_difference(p)) stable[p.mine->key] = std::abs(*x);
  }
  std::vector<Part> parts;
  for (const std::string& method : c.present()) {
    if (method == "KIVI-4") continue;
    PairedDifferences more;
    for (const OutcomePair& p : c.evidence.pairs(c.spec(method), kReference)) {
      const auto x = likelihood_difference(p);
      const auto base = stable.find(p.mine->key);
      if (x && base != stable.end()) more.add(std::abs(*x) - base->second, c.evidence.document(p.mine->key));
    }
    Part part{fmt::format("change under {} minus change under KIVI-4, nats per token", method), mean_interval(more)};
    part.result = judge_above(part.interval, 0);
    parts.push_back(part);
  }
  return decide_all(claim, rule, parts, c.command(c.present()));
}

ClaimRow evictor_is_above_full(const Case& c, const std::string& method) {
  const std::string claim = fmt::format("{} scores above the full cache on questions.", method);
  const std::string rule =
      "Over the questions on which it acted, the paired difference of the score to full lies above 0 with its whole 95 % "
      "interval; "
      "not reproduced when the interval lies below 0, or within ±5 points or a tenth of full's score, whichever is less.";
  if (const auto row = c.missing(claim, rule, {method})) return *row;
  const PairFilter questions = [&](const OutcomePair& p) {
    return c.evidence.workload(*p.mine) == WorkKind::kQuestions && !is_few_shot(p.mine->key.task);
  };
  const PairFilter acted = [&](const OutcomePair& p) { return questions(p) && p.mine->acted; };
  const std::size_t all = c.evidence.pairs(c.spec(method), kReference, questions).size();
  Part part{fmt::format("score of {} minus full, points", method),
            c.evidence.interval(c.spec(method), kReference, score_difference, ScoreKind::kCount, acted)};
  part.scale = 100;
  part.decimals = 1;
  part.result = judge_above(part.interval, margin_on(c, method, acted));
  // Longer than what it keeps, so that it acts.
  ClaimRow row = decide_all(claim, rule, {part}, c.command({method}, "--task docqa --task multihop --context 6144"));
  if (part.interval.n == 0 && all > 0) {
    row.reason = fmt::format("It acted on none of {}: all were shorter than what it keeps.", counted(all, "question"));
  } else if (static_cast<std::size_t>(part.interval.n) < all) {
    row.reason += fmt::format(" It acted on {} of {}.", part.interval.n, counted(all, "question"));
  }
  return row;
}

// What the paper's methods lose on one kind of work, per sample, as shares of full's mean score there.
struct KindLoss {
  double full_mean = 0;
  PairedDifferences losses;
};

KindLoss loss_of(const Case& c, WorkKind kind) {
  KindLoss out;
  int count = 0;
  for (const Outcome* o : c.evidence.completed(kReference)) {
    if (c.evidence.workload(*o) != kind || !o->score) continue;
    out.full_mean += *o->score;
    ++count;
  }
  if (count == 0) return out;
  out.full_mean /= count;
  if (out.full_mean < kLowestUsefulScore) return out;
  struct Sum {
    double loss = 0;
    int methods = 0;
    int document = 0;
  };
  std::map<SampleKey, Sum> sums;
  for (const std::string& method : c.present()) {
    for (const OutcomePair& p : c.evidence.pairs(c.spec(method), kReference)) {
      const auto x = score_difference(p);
      if (c.evidence.workload(*p.mine) != kind || !x) continue;
      Sum& sum = sums[p.mine->key];
      sum.loss -= *x;
      ++sum.methods;
      sum.document = c.evidence.document(p.mine->key);
    }
  }
  for (const auto& [key, s] : sums) out.losses.add(s.loss / s.methods / out.full_mean, s.document);
  return out;
}

// The difference of two unpaired means; the interval is Welch's with the degrees of freedom of the smaller sample, which is
// wider.
PairedInterval unpaired(const PairedDifferences& a, const PairedDifferences& b) {
  const PairedInterval ia = mean_interval(a);
  const PairedInterval ib = mean_interval(b);
  PairedInterval out;
  out.n = std::min(ia.n, ib.n);
  out.documents = std::min(ia.documents, ib.documents);
  if (!ia.measurable || !ib.measurable) return out;
  const auto half = [](const PairedInterval& i) { return (i.high - i.low) / 2; };
  // Half-widths are t times the standard error, so their root of squares with the larger t is on the safe side.
  const double width = std::hypot(half(ia), half(ib));
  out.mean = ia.mean - ib.mean;
  out.low = out.mean - width;
  out.high = out.mean + width;
  out.measurable = true;
  return out;
}

ClaimRow summaries_suffer_most(const Case& c) {
  const std::string claim = "Summaries are the work most sensitive to compression.";
  const std::string rule =
      "The score lost under the paper's methods, per sample and as a share of full's mean score for that kind of work, is "
      "greater for "
      "summaries than for every other kind (95 % interval of the unpaired difference). Kinds on which full scores below 5 are "
      "left out.";
  if (c.present().size() < 3)
    return not_run(claim, rule, "These results hold fewer than three of the paper's methods.", c.command({}));
  const KindLoss summaries = loss_of(c, WorkKind::kSummaries);
  if (summaries.losses.values.empty())
    return summaries.full_mean > 0 ? undecided(claim, rule, "The full cache itself scores below 5 on summaries.")
                                   : not_run(claim, rule, "These results hold no summaries.",
                                             c.command({}, "--task longbench/multi_news --data DATA"));
  std::vector<Part> parts;
  for (const WorkKind kind : {WorkKind::kQuestions, WorkKind::kClasses, WorkKind::kCode}) {
    const KindLoss other = loss_of(c, kind);
    if (other.losses.values.empty()) continue;
    Part part{fmt::format("loss on summaries minus loss on {}, % of full's score", workload_name(kind)),
              unpaired(summaries.losses, other.losses)};
    part.scale = 100;
    part.decimals = 1;
    part.result = judge_above(part.interval, 0);
    parts.push_back(part);
  }
  const std::string to_run = c.command({}, "--task docqa --task fewshot");
  if (parts.empty()) return not_run(claim, rule, "These results hold no other kind of work that the model can do.", to_run);
  return decide_all(claim, rule, parts, to_run);
}

constexpr const char* kFewShotFlags = "--task fewshot:questions=4";

PairFilter few_shot() {
  return [](const OutcomePair& p) { return is_few_shot(p.mine->key.task); };
}

ClaimRow few_shot_is_robust(const Case& c) {
  const std::string claim = "Few-shot tasks are robust to compression.";
  const std::string rule =
      "On few-shot tasks the score under each of the paper's methods is shown to be at most 5 points, or a tenth of full's score "
      "where that is less, below full; not reproduced when one is below full and reaches beyond.";
  if (c.present().size() < 3)
    return not_run(claim, rule, "These results hold fewer than three of the paper's methods.", c.command({}));
  std::vector<Part> parts;
  for (const std::string& method : c.present()) {
    Part part{fmt::format("score of {} minus full on few-shot tasks, points", method),
              c.evidence.interval(c.spec(method), kReference, score_difference, ScoreKind::kCount, few_shot())};
    part.scale = 100;
    part.decimals = 1;
    part.result = judge_no_less(part.interval, margin_on(c, method, few_shot()));
    parts.push_back(part);
  }
  return decide_all(claim, rule, parts, c.command(c.present(), kFewShotFlags));
}

ClaimRow kivi2_is_best_at_few_shot(const Case& c) {
  const std::string claim = "KIVI-2 is the best method on few-shot tasks.";
  const std::string rule =
      "On few-shot tasks KIVI-2 scores above each other method of the paper with the whole 95 % interval of the paired "
      "difference; not "
      "reproduced when one scores above it, or as much within ±5 points or a tenth of full's score, whichever is less.";
  if (const auto row = c.missing(claim, rule, {"KIVI-2", "KIVI-4"})) return *row;
  std::vector<Part> parts;
  for (const std::string& method : c.present()) {
    if (method == "KIVI-2") continue;
    Part part{fmt::format("score of KIVI-2 minus {} on few-shot tasks, points", method),
              c.evidence.interval(c.spec("KIVI-2"), c.spec(method), score_difference, ScoreKind::kCount, few_shot())};
    part.scale = 100;
    part.decimals = 1;
    part.result = judge_above(part.interval, margin_on(c, method, few_shot()));
    parts.push_back(part);
  }
  return decide_all(claim, rule, parts, c.command(c.present(), kFewShotFlags));
}

double ratio_after_prompt(const Outcome& o) {
  return o.allocated_bytes > 0 ? static_cast<double>(o.f16_bytes) / static_cast<double>(o.allocated_bytes) : 0;
}

double ratio_at_end(const Outcome& o) {
  return o.end_allocated_bytes > 0 ? static_cast<double>(o.end_f16_bytes) / static_cast<double>(o.end_allocated_bytes) : 0;
}

ClaimRow kivi_and_snapkv_are_predictable(const Case& c) {
  const std::string claim = "KIVI and SnapKV compress predictably, by 3 to 5 times.";
  const std::string rule =
      "The middle 90 % of the samples' compression ratios (after the prompt) lie between 3.0 and 5.4 for KIVI-2, KIVI-4 and "
      "SnapKV, and "
      "for each the 95th percentile is at most 1.2 times the 5th.";
  if (const auto row = c.missing(claim, rule, {"KIVI-2", "KIVI-4", "SnapKV"})) return *row;
  ClaimRow row = undecided(claim, rule, "");
  row.figure = "compression ratios, 5th to 95th percentile, times";
  row.is_difference = false;
  row.decimals = 2;
  row.n = 1 << 30;
  bool holds = true;
  for (const std::string method : {"KIVI-2", "KIVI-4", "SnapKV"}) {
    std::vector<double> ratios;
    for (const Outcome* o : c.evidence.completed(c.spec(method))) ratios.push_back(ratio_after_prompt(*o));
    row.n = std::min(row.n, static_cast<int>(ratios.size()));
    const double low = quantile(ratios, 0.05);
    const double high = quantile(ratios, 0.95);
    holds = holds && low >= 3.0 && high <= 5.4 && high <= 1.2 * low;
    row.low = std::min(row.low.value_or(low), low);
    row.high = std::max(row.high.value_or(high), high);
    row.reason += fmt::format("{}{} {}", row.reason.empty() ? "" : ", ", method, range_text(low, high, 2));
  }
  row.reason += " times.";
  if (row.n < kMinimumPairs) {
    row.reason = fmt::format("Too few samples: {}.", row.n);
    return row;
  }
  row.result = holds ? ClaimResult::kReproduced : ClaimResult::kNotReproduced;
  return row;
}

ClaimRow cam_depends_on_redundancy(const Case& c) {
  const std::string claim = "CaM compresses by 1 to 14 times, depending on redundancy in the text.";
  const std::string rule =
      "Length alone predicts tokens ÷ target, at least 1, times one factor for all samples (layers with a window hold less at "
      "any rate). Reproduced when the ratio at the end misses that by more than 10 % in most of the samples on which CaM acted; "
      "not "
      "reproduced when length explains it within 10 %.";
  if (const auto row = c.missing(claim, rule, {"CaM"})) return *row;
  const std::optional<SpecKeys> keys = spec_keys(c.spec("CaM"));
  const double target = keys ? std::atof(keys->key("target").c_str()) : 0;
  if (target < 1) return undecided(claim, rule, fmt::format("The target of {} is no number of rows.", c.spec("CaM")));
  std::vector<double> misses;
  std::vector<double> ratios;
  const std::vector<const Outcome*> all = c.evidence.completed(c.spec("CaM"));
  for (const Outcome* o : all) {
    if (!o->acted) continue;
    const double predicted = std::max(1.0, (c.evidence.prompt_tokens(*o) + o->completion_tokens) / target);
    ratios.push_back(ratio_at_end(*o));
    misses.push_back(std::log(ratios.back() / predicted));
  }
  const double factor = median(misses);
  for (double& miss : misses) miss = std::abs(miss - factor);
  ClaimRow row = undecided(claim, rule, "");
  row.n = static_cast<int>(ratios.size());
  if (row.n < kMinimumPairs) {
    row.reason = fmt::format("CaM acted on {} of {}: the others have fewer tokens than its target of {:.0f}.", row.n,
                             counted(all.size(), "sample"), target);
    if (row.n > 0) return row;
    return not_run(claim, rule, row.reason, c.command({"CaM"}, fmt::format("--context {:.0f}", 4 * target)));
  }
  row.figure = "ratio at the end, smallest to largest, times";
  row.is_difference = false;
  row.decimals = 2;
  row.low = quantile(ratios, 0);
  row.high = quantile(ratios, 1);
  const double miss = std::expm1(median(misses));
  row.result = miss > kNearTarget ? ClaimResult::kReproduced : ClaimResult::kNotReproduced;
  row.reason = fmt::format(
      "The ratio is off {:.2f} · tokens ÷ target by {:.1f} % in the median; {} of {} had more tokens than the target.",
      std::exp(factor), 100 * miss, row.n, counted(all.size(), "sample"));
  return row;
}

// Pairs of caches whose ratios differ by a tenth or more: does the larger ratio always do worse (or faster)?
// `compare` says of a spec against another what speaks for the claim when it is above 0.
using Comparison = std::function<PairedInterval(const std::string&, const std::string&)>;
ClaimRow ratio_predicts_nothing(const Case& c, const std::string& claim, const std::string& rule, const Comparison& compare,
                                const std::string& what) {
  std::map<std::string, double> ratio;
  for (const std::string& method : c.present()) {
    std::vector<double> ratios;
    for (const Outcome* o : c.evidence.completed(c.spec(method))) ratios.push_back(ratio_after_prompt(*o));
    ratio[method] = median(ratios);
  }
  std::vector<Part> for_claim;  // the stronger compression is not the worse one
  int as_predicted = 0;
  int open = 0;
  for (const auto& [strong, r] : ratio) {
    for (const auto& [weak, q] : ratio) {
      if (r < 1.1 * q) continue;
      Part part{fmt::format("{} of {} ({:.2f} times smaller) minus {} ({:.2f} times)", what, strong, r, weak, q),
                compare(c.spec(strong), c.spec(weak))};
      part.result = judge_above(part.interval, 0);
      if (part.result == ClaimResult::kReproduced) for_claim.push_back(part);
      if (part.result == ClaimResult::kUndecided) ++open;
      if (part.result == ClaimResult::kNotReproduced) ++as_predicted;
    }
  }
  if (!for_claim.empty()) {
    const auto strongest = std::ranges::max_element(for_claim, {}, [](const Part& p) { return p.interval.low; });
    ClaimRow row = decide_all(claim, rule, {*strongest}, c.command({}));
    row.reason += fmt::format(" {} against the order of their ratios, {} with it, {} open.",
                              counted(for_claim.size(), "pair of caches goes", "pairs of caches go"), as_predicted,
                              counted(open, "is", "are"));
    return row;
  }
  ClaimRow row = undecided(claim, rule, "");
  row.n = as_predicted;
  if (open == 0 && as_predicted >= 3) {
    row.result = ClaimResult::kNotReproduced;
    row.reason = fmt::format("All {} pairs of caches are in the order of their ratios.", as_predicted);
  } else {
    row.reason = fmt::format("{} in the order of their ratios, none against it, {} open.",
                             counted(as_predicted, "pair of caches is", "pairs of caches are"), counted(open, "is", "are"));
  }
  return row;
}

ClaimRow ratio_does_not_predict_quality(const Case& c) {
  return ratio_predicts_nothing(
      c, "The compression ratio alone does not predict quality.",
      "Reproduced when, of two caches whose ratios differ by 10 % or more, the smaller one keeps the reference answers "
      "likelier (95 % interval); not reproduced when in all pairs, at least 3, the smaller one keeps them less likely.",
      [&](const std::string& mine, const std::string& other) {
        return c.evidence.interval(mine, other, likelihood_difference, ScoreKind::kMeasurement);
      },
      "likelihood, nats per token,");
}

ClaimRow ratio_does_not_predict_speed(const Case& c) {
  const std::string claim = "The compression ratio alone does not predict speed.";
  const std::string rule =
      "Reproduced when, of two caches whose ratios differ by 10 % or more, the smaller one generates more slowly (95 % "
      "interval); not "
      "reproduced when in all pairs, at least 3, it is the faster one; only with times that were not shared.";
  if (const auto row = c.not_alone(claim, rule, c.present())) return *row;
  const Comparison slowness = [&](const std::string& mine, const std::string& other) {
    return time_ratio(c.evidence, mine, other, TimeOf::kEachToken).interval;
  };
  return ratio_predicts_nothing(c, claim, rule, slowness, "log time per token");
}

}  // namespace

const std::string& CompressionCase::spec(const std::string& role) const {
  return role == kReference ? kReference : roles.at(role);
}

std::vector<std::string> CompressionCase::present() const {
  std::vector<std::string> out;
  for (const auto& [method, spec] : kPaperMethods)
    if (roles.contains(method)) out.push_back(method);
  return out;
}

std::string CompressionCase::command(const std::vector<std::string>& methods, std::string_view flags) const {
  std::vector<std::string> specs;
  for (const auto& [method, spec] : kPaperMethods)
    if (std::ranges::find(methods, method) != methods.end()) specs.push_back(roles.contains(method) ? roles.at(method) : spec);
  return bench_command(evidence.results(), kPreset, specs, flags);
}

std::optional<ClaimRow> CompressionCase::missing(const std::string& claim, const std::string& rule,
                                                 const std::vector<std::string>& wanted) const {
  const std::string what = missing_roles(roles, wanted);
  if (what.empty()) return std::nullopt;
  return not_run(claim, rule, what, command(wanted));
}

std::optional<ClaimRow> CompressionCase::not_alone(const std::string& claim, const std::string& rule,
                                                   const std::vector<std::string>& methods) const {
  const auto compares = [&](const std::string& m) {
    return !time_ratio(evidence, spec(m), kReference, TimeOf::kEachToken).shared;
  };
  if (std::ranges::all_of(methods, compares)) return std::nullopt;
  return not_run(
      claim, rule,
      fmt::format("The stored rates come from decode steps shared by all caches, so they are the same by construction, "
                  "and caches did not run alone on at least {} prompts.",
                  kMinimumPairs),
      command(methods, "--solo 5"));
}

double margin_on(const CompressionCase& c, const std::string& method, const PairFilter& keep) {
  return score_margin(c.evidence.mean_score(c.spec(method), kReference, keep));
}

Roles compression_roles(const StoredResults& results) {
  Roles roles;
  for (const std::string& spec : specs_of(results)) {
    const std::optional<SpecKeys> keys = spec_keys(spec);
    if (!keys) continue;
    const std::string bits = keys->key("bits");
    if (keys->name == "kivi" && bits == "2") roles.try_emplace("KIVI-2", spec);
    if (keys->name == "kivi" && bits == "4") roles.try_emplace("KIVI-4", spec);
    if (keys->name == "turboquant" && (bits == "3" || bits == "3.25")) roles.try_emplace("TurboQuant-3", spec);
    if (keys->name == "turboquant" && bits == "4") roles.try_emplace("TurboQuant-4", spec);
    if (keys->name == "snapkv") roles.try_emplace("SnapKV", spec);
    if (keys->name == "cam") roles.try_emplace("CaM", spec);
  }
  return roles;
}

std::vector<ClaimRow> compression_claims(const Evidence& evidence, const Roles& roles, const StoredResults* other) {
  const Case c{evidence, roles};
  std::vector<ClaimRow> rows = {kivi4_is_the_most_stable(c),     evictor_is_above_full(c, "SnapKV"),
                                evictor_is_above_full(c, "CaM"), summaries_suffer_most(c),
                                few_shot_is_robust(c),           kivi2_is_best_at_few_shot(c)};
  std::ranges::copy(time_claims(c), std::back_inserter(rows));
  for (const ClaimRow& row : {kivi_and_snapkv_are_predictable(c), cam_depends_on_redundancy(c), ratio_does_not_predict_speed(c),
                              ratio_does_not_predict_quality(c), family_claim(evidence, roles, other)})
    rows.push_back(row);
  return rows;
}

}  // namespace kvartet
