#include "report/pairing.h"

#include <algorithm>

namespace kvartet {

std::set<SampleKey> samples_decided_by_prefill(const StoredResults& results) {
  std::set<SampleKey> out;
  for (const SampleRecord& s : results.samples)
    if (s.decided_by_prefill()) out.insert(s.key);
  return out;
}

References references_of(const StoredResults& results, const std::string& full_spec) {
  const std::set<SampleKey> decided = samples_decided_by_prefill(results);
  References out;
  for (const Outcome& o : results.outcomes)
    if (o.spec == full_spec && !o.failed() && !decided.contains(o.key)) out[o.key] = &o;
  return out;
}

void PairedPool::Figures::add(const std::optional<double>& mine, const std::optional<double>& theirs, int document) {
  if (!mine) return;
  values.push_back(*mine);
  if (!theirs) return;
  differences.add(*mine - *theirs, document);
  references += *theirs;
}

std::optional<double> PairedPool::Figures::reference() const {
  if (differences.values.empty()) return std::nullopt;
  return references / static_cast<double>(differences.values.size());
}

void PairedPool::add(const Outcome& outcome, const References& references, int document) {
  const auto reference = references.find(outcome.key);
  const bool paired = reference != references.end();
  pairs_ += paired ? 1 : 0;
  scores_.add(outcome.score, paired ? reference->second->score : std::nullopt, document);
  likelihoods_.add(outcome.gold_log_likelihood, paired ? reference->second->gold_log_likelihood : std::nullopt, document);
}

int PairedPool::n() const { return static_cast<int>(std::max(scores_.values.size(), likelihoods_.values.size())); }

Measured PairedPool::score(bool compared, ScoreKind kind) const {
  const std::optional<double> reference = scores_.reference();
  const double margin = reference ? score_margin(*reference) : kScoreMargin;
  Measured out = measured_from(scores_.values, scores_.differences, compared, kind, 100, margin);
  if (compared && reference) out.reference = 100 * *reference;
  return out;
}

Measured PairedPool::likelihood(bool compared) const {
  return measured_from(likelihoods_.values, likelihoods_.differences, compared, ScoreKind::kMeasurement, 1, kLikelihoodMargin);
}

}  // namespace kvartet
