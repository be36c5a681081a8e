// The compression paper's claims about time: to the first token, and while generating.
#include <fmt/format.h>

#include <cmath>

#include "report/claims_compression.h"

namespace kvartet {
namespace {

using Case = CompressionCase;
const std::string kFull = "full";
constexpr double kHardly = 0.10;  // "hardly changed": within a tenth

ClaimRow snapkv_keeps_the_rate(const Case& c) {
  const std::string claim = "SnapKV generates at least as fast as the full cache.";
  const std::string rule =
      "The paired ratio of stored decode rates to full is not below 1 by more than 5 % (95 % interval); only with times that "
      "were not shared.";
  if (const auto row = c.missing(claim, rule, {"SnapKV"})) return *row;
  if (const auto row = c.not_alone(claim, rule, {"SnapKV"})) return *row;
  Part part{"decode rate of SnapKV over full's, factor",
            c.evidence.interval(c.spec("SnapKV"), kFull, rate_log_ratio, ScoreKind::kMeasurement)};
  part.is_log_ratio = true;
  part.result = judge_no_less(part.interval, 0.05);
  return decide_all(claim, rule, {part}, c.command({"SnapKV"}));
}

// Says of a row about the first token what shared times mean for it.
ClaimRow with_share_note(ClaimRow row, bool shared) {
  if (!shared || row.n == 0) return row;
  row.limits = "by the sealing alone";
  row.reason +=
      " The prefill and the first step were shared by all caches, so this rests on the sealing alone; 'kvartet bench ... --solo "
      "5' "
      "times whole requests.";
  return row;
}

ClaimRow first_token_hardly_changes(const Case& c) {
  const std::string claim = "The time to the first token hardly changes, except under TurboQuant.";
  const std::string rule =
      "The paired ratio of stored times to the first token to full's lies within ±10 % for KIVI, SnapKV and CaM and above it for "
      "TurboQuant-4, each with its whole 95 % interval.";
  if (const auto row = c.missing(claim, rule, {"KIVI-4", "SnapKV", "TurboQuant-4"})) return *row;
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
  return with_share_note(decide_all(claim, rule, parts, c.command(c.present())), shared);
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
  if (const auto row = c.missing(claim, rule, {"TurboQuant-4", "KIVI-4"})) return *row;
  const std::vector<Part> parts = slower_than_all(c, "time to the first token", ttft_log_ratio, 1);
  return with_share_note(decide_all(claim, rule, parts, c.command(c.present())),
                         c.evidence.shared(c.spec("TurboQuant-4"), kFull));
}

ClaimRow turboquant_is_slowest(const Case& c) {
  const std::string claim = "TurboQuant generates slowest of all.";
  const std::string rule =
      "TurboQuant-4's stored decode rate is below that of every other method and of full (95 % intervals of paired ratios); not "
      "reproduced when one is slower, or as fast within 2 %; only with times that were not shared.";
  if (const auto row = c.missing(claim, rule, {"TurboQuant-4", "KIVI-4"})) return *row;
  if (const auto row = c.not_alone(claim, rule, c.present())) return *row;
  return decide_all(claim, rule, slower_than_all(c, "decode rate", rate_log_ratio, -1), c.command(c.present()));
}

}  // namespace

std::vector<ClaimRow> time_claims(const CompressionCase& c) {
  return {snapkv_keeps_the_rate(c), first_token_hardly_changes(c), turboquant_is_last_to_start(c), turboquant_is_slowest(c)};
}

}  // namespace kvartet
