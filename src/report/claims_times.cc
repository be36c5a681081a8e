// The compression paper's claims about time: to the first token, and while generating.
#include <fmt/format.h>

#include <cmath>
#include <set>

#include "core/counted.h"
#include "report/claims_compression.h"
#include "report/time_ratio.h"

namespace kvartet {
namespace {

using Case = CompressionCase;
constexpr double kHardly = 0.10;  // "hardly changed": within a tenth

// The comparisons of a claim, and what their times were taken of.
struct Timing {
  std::vector<Part> parts;
  int alone = 0;                // comparisons of runs alone
  int shared = 0;               // comparisons of what caches did for themselves in a shared run
  std::set<SampleKey> prompts;  // of the runs alone

  // A comparison, to be judged by the caller.
  Part& add(const Case& c, const std::string& mine, const std::string& other, TimeOf time, std::string what) {
    const TimeRatio ratio = time_ratio(c.evidence, c.spec(mine), c.spec(other), time);
    alone += ratio.alone ? 1 : 0;
    shared += ratio.shared ? 1 : 0;
    if (ratio.alone) {
      for (const SoloPair& pair : c.evidence.solo_pairs(c.spec(mine), c.spec(other))) prompts.insert(pair.mine->key);
    }
    Part part{std::move(what), ratio.interval};
    part.is_log_ratio = true;
    parts.push_back(std::move(part));
    return parts.back();
  }
};

// Decides, and says what times the row rests on.
ClaimRow decide_timing(const std::string& claim, const std::string& rule, const Timing& timing, std::string to_run) {
  ClaimRow row = decide_all(claim, rule, timing.parts, std::move(to_run));
  if (row.n == 0) return row;
  const int all = static_cast<int>(timing.parts.size());
  if (timing.alone == all) {
    row.reason += fmt::format(" Each cache ran alone, on {}.", counted(timing.prompts.size(), "prompt"));
  } else if (timing.alone > 0) {
    row.limits = "in part by the sealing alone";
    row.reason += fmt::format(
        " Both caches ran alone, on {}, in {} of {} comparisons; in the others the prefill and the first step were shared, so "
        "they rest on the sealing alone; 'kvartet bench ... --solo 5' times whole requests of all.",
        counted(timing.prompts.size(), "prompt"), timing.alone, all);
  } else if (timing.shared > 0) {
    row.limits = "by the sealing alone";
    row.reason +=
        " The prefill and the first step were shared by all caches, so this rests on the sealing alone; 'kvartet bench ... "
        "--solo 5' times whole requests.";
  }
  return row;
}

ClaimRow snapkv_keeps_the_rate(const Case& c) {
  const std::string claim = "SnapKV generates at least as fast as the full cache.";
  const std::string rule =
      "The paired ratio of decode rates to full is not below 1 by more than 5 % (95 % interval); only with times that were not "
      "shared.";
  if (const auto row = c.missing(claim, rule, {"SnapKV"})) return *row;
  if (const auto row = c.not_alone(claim, rule, {"SnapKV"})) return *row;
  Timing timing;
  Part& faster = timing.add(c, kReference, "SnapKV", TimeOf::kEachToken, "decode rate of SnapKV over full's, factor");
  faster.result = judge_no_less(faster.interval, 0.05);
  return decide_timing(claim, rule, timing, c.command({"SnapKV"}));
}

ClaimRow first_token_hardly_changes(const Case& c) {
  const std::string claim = "The time to the first token hardly changes, except under TurboQuant.";
  const std::string rule =
      "The paired ratio of times to the first token to full's lies within ±10 % for KIVI, SnapKV and CaM and above it for "
      "TurboQuant-4, each with its whole 95 % interval.";
  if (const auto row = c.missing(claim, rule, {"KIVI-4", "SnapKV", "TurboQuant-4"})) return *row;
  const double edge = std::log1p(kHardly);
  Timing timing;
  for (const std::string& method : c.present()) {
    if (method == "TurboQuant-3") continue;
    Part& later = timing.add(c, method, kReference, TimeOf::kFirstToken,
                             fmt::format("time to the first token of {} over full's, factor", method));
    later.result = method == "TurboQuant-4" ? judge_above(beyond(later.interval, edge), 0) : judge_equal(later.interval, edge);
  }
  return decide_timing(claim, rule, timing, c.command(c.present()));
}

Timing turboquant_against_all(const Case& c, TimeOf time, const std::string& what) {
  Timing timing;
  for (const std::string method : {"KIVI-2", "KIVI-4", "SnapKV", "CaM", "full"}) {
    if (method != kReference && !c.roles.contains(method)) continue;
    Part& longer =
        timing.add(c, "TurboQuant-4", method, time, fmt::format("{} of TurboQuant-4 over that of {}, factor", what, method));
    longer.result = judge_above(longer.interval, 0.02);
  }
  return timing;
}

ClaimRow turboquant_is_last_to_start(const Case& c) {
  const std::string claim = "TurboQuant is the slowest to the first token.";
  const std::string rule =
      "TurboQuant-4's time to the first token is above that of every other method and of full (95 % intervals of paired "
      "ratios); not reproduced when one takes longer, or as long within 2 %.";
  if (const auto row = c.missing(claim, rule, {"TurboQuant-4", "KIVI-4"})) return *row;
  return decide_timing(claim, rule, turboquant_against_all(c, TimeOf::kFirstToken, "time to the first token"),
                       c.command(c.present()));
}

ClaimRow turboquant_is_slowest(const Case& c) {
  const std::string claim = "TurboQuant generates slowest of all.";
  const std::string rule =
      "TurboQuant-4's time per token is above that of every other method and of full (95 % intervals of paired ratios); not "
      "reproduced when one is slower, or as fast within 2 %; only with times that were not shared.";
  if (const auto row = c.missing(claim, rule, {"TurboQuant-4", "KIVI-4"})) return *row;
  if (const auto row = c.not_alone(claim, rule, c.present())) return *row;
  return decide_timing(claim, rule, turboquant_against_all(c, TimeOf::kEachToken, "time per token"), c.command(c.present()));
}

}  // namespace

std::vector<ClaimRow> time_claims(const CompressionCase& c) {
  return {snapkv_keeps_the_rate(c), first_token_hardly_changes(c), turboquant_is_last_to_start(c), turboquant_is_slowest(c)};
}

}  // namespace kvartet
