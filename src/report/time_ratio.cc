#include "report/time_ratio.h"

#include <cmath>

#include "report/pairing.h"

namespace kvartet {
namespace {

// Seconds per token from a rate; 0 where there is none.
double seconds_of(double per_second) { return per_second > 0 ? 1 / per_second : 0; }

double time_of(const SoloRun& run, TimeOf time) {
  return time == TimeOf::kFirstToken ? run.ttft_s : seconds_of(run.decode_tokens_per_s);
}

double time_of(const Outcome& outcome, TimeOf time) {
  return time == TimeOf::kFirstToken ? outcome.ttft_s : seconds_of(outcome.decode_tokens_per_s);
}

std::optional<double> log_ratio(double mine, double other) {
  if (mine <= 0 || other <= 0) return std::nullopt;
  return std::log(mine / other);
}

PairedInterval alone_interval(const Evidence& evidence, const std::string& mine, const std::string& other, TimeOf time) {
  PairedDifferences differences;
  for (const SoloPair& pair : evidence.solo_pairs(mine, other)) {
    if (const auto x = log_ratio(time_of(*pair.mine, time), time_of(*pair.other, time)))
      differences.add(*x, evidence.document(pair.mine->key));
  }
  return paired_interval(differences, ScoreKind::kMeasurement);
}

PairedInterval company_interval(const Evidence& evidence, const std::string& mine, const std::string& other, TimeOf time) {
  const PairValue value = [&](const OutcomePair& pair) -> std::optional<double> {
    if (!times_compare(*pair.mine, *pair.other)) return std::nullopt;
    return log_ratio(time_of(*pair.mine, time), time_of(*pair.other, time));
  };
  return evidence.interval(mine, other, value, ScoreKind::kMeasurement);
}

}  // namespace

TimeRatio time_ratio(const Evidence& evidence, const std::string& mine, const std::string& other, TimeOf time) {
  const PairedInterval alone = alone_interval(evidence, mine, other, time);
  if (is_enough(alone)) return {alone, true, false};
  return {company_interval(evidence, mine, other, time), false, evidence.shared(mine, other)};
}

}  // namespace kvartet
