// What a results store says about quality, as statistics: one cell per (task, context, position of the question, cache), paired
// with `full`.
//
// This is to the planner what table statistics are to a query planner: a few numbers instead of the rows.
#pragma once

#include <string>
#include <vector>

#include "results/records.h"

namespace kvartet {

// Counts up when the same results give other statistics than before: what is remembered of an earlier rule is made anew.
inline constexpr int kEvidenceRevision = 3;

// Count, mean and sum of squared deviations (Welford), so that cells can be merged and given an interval.
struct Moments {
  int n = 0;
  double mean = 0;
  double m2 = 0;

  void add(double x);
  void merge(const Moments& o);
  double variance() const { return n > 1 ? m2 / (n - 1) : 0; }  // of one sample
  double standard_error() const;                                // of the mean, widened for few samples (Student's t); n >= 2
  bool operator==(const Moments&) const = default;
};

struct EvidenceCell {
  std::string model_hash;
  std::string model_name;
  std::string parameters;  // "question=seen", "=unseen" or "=second", and RunIdentity::parameters where there are any
  std::string task;
  std::string metric;
  int context = 0;
  std::string spec;       // canonical, never "full"
  int prompt_tokens = 0;  // mean
  // Over documents; one with several questions counts once, with their mean.
  Moments nats;   // full - cache: nats per token of the reference answer that the cache loses
  Moments score;  // full - cache, of scores in [0, 1]
  bool operator==(const EvidenceCell&) const = default;
};

// Of results that are in memory, such as merged ones, where a sample counts once however many folders hold it.
std::vector<EvidenceCell> evidence_of(const StoredResults& results);

// Caches in a paper's own form differ in more than the cache: in the length of their answers, for one. Not to be learned from.
bool is_paper_form(const EvidenceCell& cell);

// A run of `kvartet fidelity`: how far a cache's next-token distributions are from full's on a text of the user's.
struct FidelityRecord {
  std::string model_hash;
  std::string model_name;
  std::string text_hash;
  std::string spec;       // canonical, never "full"
  int prefix_tokens = 0;  // before the compared ones, of a window
  int tokens = 0;         // compared, of all windows
  double kl_mean = 0;     // nats
  double kl_sd = 0;       // from token to token
  std::string measured;   // UTC
  bool operator==(const FidelityRecord&) const = default;
};

// As a cell, with the divergence in the place of what a task's answers lose: what the text itself loses per token when it is
// what the model expects. Neighbouring tokens are alike, so eight of them count as one sample. A weak sign: is_fidelity tells.
EvidenceCell fidelity_cell(const FidelityRecord& record);
bool is_fidelity(const EvidenceCell& cell);

}  // namespace kvartet
