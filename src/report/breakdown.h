// Where losses come from: the depth of a fact in its document, and the samples on which caches disagree.
#pragma once

#include <string>
#include <vector>

#include "report/rows.h"

namespace kvartet {

inline constexpr int kDepthBins = 5;  // fifths of the document

struct DepthBin {
  int n = 0;
  Measured score;
  Measured likelihood;
};

struct DepthRow {
  Cell cell;
  std::string spec;
  std::vector<DepthBin> bins;  // kDepthBins of them
};

// Only samples with exactly one fact whose depth is stored: where several stand, a loss cannot be told to one of them.
std::vector<DepthRow> depth_rows(const StoredResults& results, const std::string& full_spec = "full");

// One sample on which the scores of two caches differ by at least `kDisagreement`.
inline constexpr double kDisagreement = 0.1;
struct Disagreement {
  const SampleRecord* sample = nullptr;
  std::vector<const Outcome*> outcomes;  // all that did not fail, in the order of the results
  double spread = 0;                     // highest minus lowest score
};

// The widest spreads of one table first; points into `results`.
std::vector<Disagreement> disagreements(const StoredResults& results, const Cell& cell);

}  // namespace kvartet
