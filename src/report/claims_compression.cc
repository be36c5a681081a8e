// The claims of the paper on compression (arXiv 2607.05399; compression.md 15): one function each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/counted.h"
#include "report/evidence.h"

namespace kvartet {
namespace {

const std::string kFull = "full";
constexpr double kHardly = 0.10;             // "hardly changed": within a tenth
constexpr double kLowestUsefulScore = 0.05;  // a kind of work that the model itself cannot do says nothing about caches

const std::vector<std::string> kPaperMethods = {"KIVI-2", "KIVI-4", "TurboQuant-3", "TurboQuant-4", "SnapKV", "CaM"};

struct Case {
  const Evidence& evidence;
  const Roles& roles;
  const std::string& spec(const std::string& role) const { return role == kFull ? kFull : roles.at(role); }
  std::vector<std::string> present() const {
    std::vector<std::string> out;
    std::ranges::copy_if(kPaperMethods, std::back_inserter(out), [&](const std::string& m) { return roles.contains(m); });
    return out;
  }
};

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
  if (const std::string missing = missing_roles(c.roles, {"KIVI-4", "SnapKV", "TurboQuant-4"}); !missing.empty())
    return not_measurable(claim, rule, missing);
  std::map<SampleKey, double> stable;
  for (const OutcomePair& p : c.evidence.pairs(c.spec("KIVI-4"), kFull)) {
    if (const auto x = likelihood_difference(p)) stable[p.mine->key] = std::abs(*x);
  }
  std::vector<Part> parts;
  for (const std::string& method : c.present()) {
    if (method == "KIVI-4") continue;
    PairedDifferences more;
    for (const OutcomePair& p : c.evidence.pairs(c.spec(method), kFull)) {
      const auto x = likelihood_difference(p);
      const auto base = stable.find(p.mine->key);
      if (x && base != stable.end()) more.add(std::abs(*x) - base->second, c.evidence.document(*p.mine));
    }
    Part part{fmt::format("change under {} minus change under KIVI-4, nats per token", method), mean_interval(more)};
    part.result = judge_above(part.interval, 0);
    parts.push_back(part);
  }
  return decide_all(claim, rule, parts);
}

ClaimRow evictor_is_above_full(const Case& c, const std::string& method) {
  const std::string claim = fmt::format("{} scores above the full cache on questions.", method);
  const std::string rule =
      "Over the questions on which it acted, the paired difference of the score to full lies above 0 with its whole 95 % "
      "interval; "
      "not reproduced when the interval lies below 0 or within ±5 points.";
  if (const std::string missing = missing_roles(c.roles, {method}); !missing.empty()) return not_measurable(claim, rule, missing);
  const PairFilter questions = [&](const OutcomePair& p) {
    return c.evidence.workload(*p.mine) == Workload::kQuestions && !is_few_shot(p.mine->key.task);
  };
  const PairFilter acted = [&](const OutcomePair& p) { return questions(p) && p.mine->acted; };
  const std::size_t all = c.evidence.pairs(c.spec(method), kFull, questions).size();
  Part part{fmt::format("score of {} minus full, points", method),
            c.evidence.interval(c.spec(method), kFull, score_difference, ScoreKind::kCount, acted)};
  part.scale = 100;
  part.decimals = 1;
  part.result = judge_above(part.interval, kScoreMargin);
  ClaimRow row = decide_all(claim, rule, {part});
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

KindLoss loss_of(const Case& c, Workload kind) {
  KindLoss out;
  int count = 0;
  for (const Outcome* o : c.evidence.completed(kFull)) {
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
    for (const OutcomePair& p : c.evidence.pairs(c.spec(method), kFull)) {
      const auto x = score_difference(p);
      if (c.evidence.workload(*p.mine) != kind || !x) continue;
      Sum& sum = sums[p.mine->key];
      sum.loss -= *x;
      ++sum.methods;
      sum.document = c.evidence.document(*p.mine);
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
  if (c.present().size() < 3) return not_measurable(claim, rule, "These results hold fewer than three of the paper's methods.");
  const KindLoss summaries = loss_of(c, Workload::kSummaries);
  if (summaries.losses.values.empty())
    return not_measurable(
        claim, rule,
        summaries.full_mean > 0 ? "The full cache itself scores below 5 on summaries." : "These results hold no summaries.");
  std::vector<Part> parts;
  for (const Workload kind : {Workload::kQuestions, Workload::kClasses, Workload::kCode}) {
    const KindLoss other = loss_of(c, kind);
    if (other.losses.values.empty()) continue;
    Part part{fmt::format("loss on summaries minus loss on {}, % of full's score", workload_name(kind)),
              unpaired(summaries.losses, other.losses)};
    part.scale = 100;
    part.decimals = 1;
    part.result = judge_above(part.interval, 0);
    parts.push_back(part);
  }
  if (parts.empty()) return not_measurable(claim, rule, "These results hold no other kind of work that the model can do.");
  return decide_all(claim, rule, parts);
}

PairFilter few_shot() {
  return [](const OutcomePair& p) { return is_few_shot(p.mine->key.task); };
}

ClaimRow few_shot_is_robust(const Case& c) {
  const std::string claim = "Few-shot tasks are robust to compression.";
  const std::string rule =
      "On few-shot tasks the score under each of the paper's methods is shown to be within ±5 points of full; not reproduced "
      "when one "
      "is below full and reaches beyond 5 points.";
  if (c.present().size() < 3) return not_measurable(claim, rule, "These results hold fewer than three of the paper's methods.");
  std::vector<Part> parts;
  for (const std::string& method : c.present()) {
    Part part{fmt::format("score of {} minus full on few-shot tasks, points", method),
              c.evidence.interval(c.spec(method), kFull, score_difference, ScoreKind::kCount, few_shot())};
    part.scale = 100;
    part.decimals = 1;
    part.result = judge_no_less(part.interval, kScoreMargin);
    parts.push_back(part);
  }
  return decide_all(claim, rule, parts);
}

ClaimRow kivi2_is_best_at_few_shot(const Case& c) {
  const std::string claim = "KIVI-2 is the best method on few-shot tasks.";
  const std::string rule =
      "On few-shot tasks KIVI-2 scores above each other method of the paper with the whole 95 % interval of the paired "
      "difference; not "
      "reproduced when one scores above it, or as much within ±5 points.";
  if (const std::string missing = missing_roles(c.roles, {"KIVI-2", "KIVI-4"}); !missing.empty())
    return not_measurable(claim, rule, missing);
  std::vector<Part> parts;
  for (const std::string& method : c.present()) {
    if (method == "KIVI-2") continue;
    Part part{fmt::format("score of KIVI-2 minus {} on few-shot tasks, points", method),
              c.evidence.interval(c.spec("KIVI-2"), c.spec(method), score_difference, ScoreKind::kCount, few_shot())};
    part.scale = 100;
    part.decimals = 1;
    part.result = judge_above(part.interval, kScoreMargin);
    parts.push_back(part);
  }
  return decide_all(claim, rule, parts);
}

const char* const kSharedRate =
    "The stored rates come from decode steps shared by all caches, so they are the same by construction; run 'kvartet bench' "
    "once per "
    "cache into the same folder, or 'kvartet speed'.";

ClaimRow snapkv_keeps_the_rate(const Case& c) {
  const std::string claim = "SnapKV generates at least as fast as the full cache.";
  const std::string rule =
      "The paired ratio of stored decode rates to full is not below 1 by more than 5 % (95 % interval); only with times that "
      "were not shared.";
  if (const std::string missing = missing_roles(c.roles, {"SnapKV"}); !missing.empty())
    return not_measurable(claim, rule, missing);
  if (c.evidence.shared(c.spec("SnapKV"), kFull)) return not_measurable(claim, rule, kSharedRate);
  Part part{"decode rate of SnapKV over full's, factor",
            c.evidence.interval(c.spec("SnapKV"), kFull, rate_log_ratio, ScoreKind::kMeasurement)};
  part.is_log_ratio = true;
  part.result = judge_no_less(part.interval, 0.05);
  return decide_all(claim, rule, {part});
}

// Says of a row about the first token what shared times mean for it.
ClaimRow with_share_note(ClaimRow row, bool shared) {
  if (shared && row.n > 0)
    row.reason += " The prefill and the first step were shared by all caches: only the sealing is each cache's own time.";
  return row;
}

ClaimRow first_token_hardly_changes(const Case& c) {
  const std::string claim = "The time to the first token hardly changes, except under TurboQuant.";
  const std::string rule =
      "The paired ratio of stored times to the first token to full's lies within ±10 % for KIVI, SnapKV and CaM and above it for "
      "TurboQuant-4, each with its whole 95 % interval.";
  if (const std::string missing = missing_roles(c.roles, {"KIVI-4", "SnapKV", "TurboQuant-4"}); !missing.empty())
    return not_measurable(claim, rule, missing);
  std::vector<Part> parts;
  bool shared = false;
  for (const std::string& method : c.present()) {
    if (method == "TurboQuant-3") continue;
    Part part{fmt::format("time to the first token of {} over full's, factor", method),
              c.evidence.interval(c.spec(method), kFull, ttft_log_ratio, ScoreKind::kMeasurement)};
    part.is_log_ratio = true;
    const double edge = std::log1p(kHardly);
    if (method == "TurboQuant-4") {
      PairedInterval beyond = part.interval;
      beyond.low -= edge;
      beyond.high -= edge;
      part.result = judge_above(beyond, 0);
    } else {
      part.result = judge_equal(part.interval, edge);
    }
    shared = shared || c.evidence.shared(c.spec(method), kFull);
    parts.push_back(part);
  }
  return with_share_note(decide_all(claim, rule, parts), shared);
}

// `sign` 1: larger is slower.
std::vector<Part> slower_than_all(const Case& c, const std::string& what, const PairValue& value, double sign) {
  std::vector<Part> parts;
  for (const std::string& method :
       {std::string("KIVI-2"), std::string("KIVI-4"), std::string("SnapKV"), std::string("CaM"), kFull}) {
    if (method != kFull && !c.roles.contains(method)) continue;
    Part part{fmt::format("{} of TurboQuant-4 over that of {}, factor", what, method),
              c.evidence.interval(c.spec("TurboQuant-4"), c.spec(method), value, ScoreKind::kMeasurement)};
    part.is_log_ratio = true;
    PairedInterval signed_interval = part.interval;
    if (sign < 0) {
      signed_interval.low = -part.interval.high;
      signed_interval.high = -part.interval.low;
    }
    part.result = judge_above(signed_interval, 0.02);
    parts.push_back(part);
  }
  return parts;
}

ClaimRow turboquant_is_last_to_start(const Case& c) {
  const std::string claim = "TurboQuant is the slowest to the first token.";
  const std::string rule =
      "TurboQuant-4's stored time to the first token is above that of every other method and of full (95 % intervals of paired "
      "ratios); "
      "not reproduced when one takes longer, or as long within 2 %.";
  if (const std::string missing = missing_roles(c.roles, {"TurboQuant-4", "KIVI-4"}); !missing.empty())
    return not_measurable(claim, rule, missing);
  return with_share_note(decide_all(claim, rule, slower_than_all(c, "time to the first token", ttft_log_ratio, 1)),
                         c.evidence.shared(c.spec("TurboQuant-4"), kFull));
}

ClaimRow turboquant_is_slowest(const Case& c) {
  const std::string claim = "TurboQuant generates slowest of all.";
  const std::string rule =
      "TurboQuant-4's stored decode rate is below that of every other method and of full (95 % intervals of paired ratios); not "
      "reproduced when one is slower, or as fast within 2 %; only with times that were not shared.";
  if (const std::string missing = missing_roles(c.roles, {"TurboQuant-4", "KIVI-4"}); !missing.empty())
    return not_measurable(claim, rule, missing);
  if (c.evidence.shared(c.spec("TurboQuant-4"), kFull)) return not_measurable(claim, rule, kSharedRate);
  return decide_all(claim, rule, slower_than_all(c, "decode rate", rate_log_ratio, -1));
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
  if (const std::string missing = missing_roles(c.roles, {"KIVI-2", "KIVI-4", "SnapKV"}); !missing.empty())
    return not_measurable(claim, rule, missing);
  ClaimRow row = not_measurable(claim, rule, "");
  row.figure = "compression ratios, 5th to 95th percentile, times";
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
      "Length alone predicts tokens ÷ target, at least 1. Reproduced when the ratio at the end misses that by more than 10 % in "
      "most of the "
      "samples on which CaM acted; not reproduced when length explains it within 10 %.";
  if (const std::string missing = missing_roles(c.roles, {"CaM"}); !missing.empty()) return not_measurable(claim, rule, missing);
  const std::optional<SpecKeys> keys = spec_keys(c.spec("CaM"));
  const double target = keys ? std::atof(keys->key("target").c_str()) : 0;
  if (target < 1) return not_measurable(claim, rule, fmt::format("The target of {} is no number of rows.", c.spec("CaM")));
  std::vector<double> misses;
  std::vector<double> ratios;
  const std::vector<const Outcome*> all = c.evidence.completed(c.spec("CaM"));
  for (const Outcome* o : all) {
    if (!o->acted) continue;
    const double predicted = std::max(1.0, (c.evidence.prompt_tokens(*o) + o->completion_tokens) / target);
    ratios.push_back(ratio_at_end(*o));
    misses.push_back(std::abs(std::log(ratios.back() / predicted)));
  }
  ClaimRow row = not_measurable(claim, rule, "");
  row.n = static_cast<int>(ratios.size());
  if (row.n < kMinimumPairs) {
    row.reason = fmt::format("CaM acted on {} of {}: the others have fewer tokens than its target of {:.0f}.", row.n,
                             counted(all.size(), "sample"), target);
    return row;
  }
  row.figure = "ratio at the end, smallest to largest, times";
  row.decimals = 2;
  row.low = quantile(ratios, 0);
  row.high = quantile(ratios, 1);
  const double miss = std::expm1(median(misses));
  row.result = miss > kHardly ? ClaimResult::kReproduced : ClaimResult::kNotReproduced;
  row.reason =
      fmt::format("The ratio is off tokens ÷ target by {:.1f} % in the median; {} of {} had more tokens than the target.",
                  100 * miss, row.n, counted(all.size(), "sample"));
  return row;
}

// Pairs of caches whose ratios differ by a tenth or more: does the larger ratio always do worse (or faster)?
ClaimRow ratio_predicts_nothing(const Case& c, const std::string& claim, const std::string& rule, const PairValue& value,
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
                c.evidence.interval(c.spec(strong), c.spec(weak), value, ScoreKind::kMeasurement)};
      part.result = judge_above(part.interval, 0);
      if (part.result == ClaimResult::kReproduced) for_claim.push_back(part);
      if (part.result == ClaimResult::kNotMeasurable) ++open;
      if (part.result == ClaimResult::kNotReproduced) ++as_predicted;
    }
  }
  if (!for_claim.empty()) {
    const auto strongest = std::ranges::max_element(for_claim, {}, [](const Part& p) { return p.interval.low; });
    ClaimRow row = decide_all(claim, rule, {*strongest});
    row.reason += fmt::format(" {} against the order of their ratios, {} with it, {} open.",
                              counted(for_claim.size(), "pair of caches goes", "pairs of caches go"), as_predicted,
                              counted(open, "is", "are"));
    return row;
  }
  ClaimRow row = not_measurable(claim, rule, "");
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
      likelihood_difference, "likelihood, nats per token,");
}

ClaimRow ratio_does_not_predict_speed(const Case& c) {
  const std::string claim = "The compression ratio alone does not predict speed.";
  const std::string rule =
      "Reproduced when, of two caches whose ratios differ by 10 % or more, the smaller one generates more slowly (95 % "
      "interval); not "
      "reproduced when in all pairs, at least 3, it is the faster one; only with times that were not shared.";
  for (const std::string& method : c.present()) {
    if (c.evidence.shared(c.spec(method), c.spec(method))) return not_measurable(claim, rule, kSharedRate);
  }
  const PairValue slowness = [](const OutcomePair& p) {
    const std::optional<double> ratio = rate_log_ratio(p);
    return ratio ? std::optional<double>(-*ratio) : std::nullopt;
  };
  return ratio_predicts_nothing(c, claim, rule, slowness, "log time per token");
}

}  // namespace

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
  return {kivi4_is_the_most_stable(c),
          evictor_is_above_full(c, "SnapKV"),
          evictor_is_above_full(c, "CaM"),
          summaries_suffer_most(c),
          few_shot_is_robust(c),
          kivi2_is_best_at_few_shot(c),
          snapkv_keeps_the_rate(c),
          first_token_hardly_changes(c),
          turboquant_is_last_to_start(c),
          turboquant_is_slowest(c),
          kivi_and_snapkv_are_predictable(c),
          cam_depends_on_redundancy(c),
          ratio_does_not_predict_speed(c),
          ratio_does_not_predict_quality(c),
          family_claim(evidence, roles, other)};
}

}  // namespace kvartet
