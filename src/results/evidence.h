// What a results store says about quality, as statistics: one cell per (task, context, position of the question, cache), paired
// with `full`.
//
// This is to the planner what table statistics are to a query planner: a few numbers instead of the rows.
#pragma once

#include <string>

namespace kvartet {

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
  std::string parameters;  // "question=seen" or "question=unseen"
  std::string task;
  std::string metric;
  int context = 0;
  std::string spec;       // canonical, never "full"
  int prompt_tokens = 0;  // mean
  Moments nats;           // full - cache: nats per token of the reference answer that the cache loses
  Moments score;          // full - cache, of scores in [0, 1]
  bool operator==(const EvidenceCell&) const = default;
};

}  // namespace kvartet
