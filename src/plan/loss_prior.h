// What a cache may cost in quality before anything was measured: the papers' findings as numbers. docs/plan.md states them.
#pragma once

#include <cstdint>

#include "plan/workload.h"

namespace kvartet {

// A mean with the standard deviation of our knowledge of it, not of samples.
struct Belief {
  double mean = 0;
  double sd = 0;
  double low() const { return mean - 1.96 * sd; }
  double high() const { return mean + 1.96 * sd; }
};

// The papers' findings as a number (compression.md 10, 15; offloading.md 9): a prior, never evidence.
Belief prior_of_format(double key_bits, double value_bits, TaskKind kind);
// How fewer rows come to be seen: chosen once by scores, once by position, or anew at every step from all rows.
enum class RowChoice : std::uint8_t { kByScores, kByPosition, kSelected };
Belief prior_of_eviction(RowChoice choice, double share, TaskKind kind, bool question_seen);

// E[max(0, X)] of a normal X: what is lost on average where a loss below 0 counts as none. Grows with the doubt.
double above_zero(const Belief& belief);

}  // namespace kvartet
