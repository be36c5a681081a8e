// Outcomes beside those of `full` on the same prompts: what every difference of the report is taken over.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "report/rows.h"
#include "results/paired.h"
#include "results/records.h"

namespace kvartet {

// Samples whose answer no cache can change: they are shown, but no difference is taken over them.
std::set<SampleKey> samples_decided_by_prefill(const StoredResults& results);

// The outcomes of `full_spec` that others may be compared with: of samples that it completed and that caches can change.
using References = std::map<SampleKey, const Outcome*>;
References references_of(const StoredResults& results, const std::string& full_spec);

// The values of one cache's outcomes, and their differences to the references.
class PairedPool {
 public:
  void add(const Outcome& outcome, const References& references, int document);

  int pairs() const { return pairs_; }  // outcomes that have a reference
  int n() const;                        // outcomes that have a value of either sort
  // `compared`: there is a reference to compare with, and this is not it.
  Measured score(bool compared, ScoreKind kind) const;
  Measured likelihood(bool compared) const;

 private:
  struct Figures {
    std::vector<double> values;
    PairedDifferences differences;
    double references = 0;  // sum over the pairs
    void add(const std::optional<double>& mine, const std::optional<double>& theirs, int document);
    std::optional<double> reference() const;  // mean over the pairs
  };
  int pairs_ = 0;
  Figures scores_;
  Figures likelihoods_;
};

}  // namespace kvartet
