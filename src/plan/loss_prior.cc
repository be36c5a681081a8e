#include "plan/loss_prior.h"

#include <array>
#include <cmath>
#include <utility>

namespace kvartet {
namespace {

constexpr double kUnseenLoss = 0.05;  // points: what even keeping every row leaves open

// log-linear between (effective bits, points): KIVI-4 and KIVI-2 at 5 and 3 bits, TurboQuant at 3.5 and 2.5.
constexpr std::array<std::pair<double, double>, 7> kFormatPrior = {
    {{1, 40}, {2, 15}, {3, 4}, {4.25, 1}, {5, 0.5}, {8.5, 0.05}, {16, 0.005}}};

double format_points(double bits) {
  if (bits <= kFormatPrior.front().first) return kFormatPrior.front().second;
  for (std::size_t i = 1; i < kFormatPrior.size(); ++i) {
    const auto [b0, p0] = kFormatPrior[i - 1];
    const auto [b1, p1] = kFormatPrior[i];
    if (bits <= b1) return p0 * std::pow(p1 / p0, (bits - b0) / (b1 - b0));
  }
  return kFormatPrior.back().second;
}

// Points at a quarter of the rows. By position alone whatever is far away is lost; selection has all rows to choose from, and
// still misses some where many are needed.
struct EvictionPrior {
  double by_scores;
  double by_position;
  double selected;
};
EvictionPrior eviction_points(TaskKind kind) {
  switch (kind) {
    case TaskKind::kSingleFact: return {1.5, 20, 0.1};
    case TaskKind::kExtraction: return {6, 25, 1.5};
    case TaskKind::kSummary: return {8, 10, 0.6};
    case TaskKind::kFewShot: return {0.5, 3, 0.1};
    case TaskKind::kChat: return {3, 5, 0.3};
    case TaskKind::kReasoning: return {4, 8, 0.8};
  }
  return {8, 25, 1.5};
}

}  // namespace

Belief prior_of_format(double key_bits, double value_bits, TaskKind kind) {
  const double demand = kind == TaskKind::kExtraction || kind == TaskKind::kReasoning ? 1.5 : 1;
  // Each side adds its own error: fine keys do not make up for coarse values. Errors in keys pass the softmax and weigh more.
  const double mean = demand * (0.6 * format_points(key_bits) + 0.4 * format_points(value_bits));
  return {mean, 2 * mean + 0.3};
}

Belief prior_of_eviction(RowChoice choice, double share, TaskKind kind, bool question_seen) {
  if (share >= 0.999) return {0, kUnseenLoss};
  const EvictionPrior points = eviction_points(kind);
  // Scores of a question that was not seen keep the wrong rows; a window of positions, or a choice at every step, does not care.
  const double unseen = question_seen || choice != RowChoice::kByScores ? 1 : 3;
  const double shape = (1 - share) / std::sqrt(share) / 1.5;
  const double at_quarter = choice == RowChoice::kByScores     ? points.by_scores
                            : choice == RowChoice::kByPosition ? points.by_position
                                                               : points.selected;
  const double mean = unseen * shape * at_quarter;
  return {mean, 2 * mean + 0.3};
}

}  // namespace kvartet
