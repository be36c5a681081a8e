// A sample's score is its best over the references (compression.md 13.1); no references score 0.
#pragma once

#include <algorithm>
#include <string>

#include "bench/metrics/metric.h"

namespace kvartet {

template <typename ScoreOne>
double best_reference(Texts references, ScoreOne score_one) {
  double best = 0;
  for (const std::string& reference : references) best = std::max(best, static_cast<double>(score_one(reference)));
  return best;
}

}  // namespace kvartet
