#include "plan/loss_prior.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace kvartet {
namespace {

constexpr double kUnseenLoss = 0.0005;  // nats: what even keeping every row leaves open
constexpr double kLeastDoubt = 0.003;   // nats

// Log-linear between (effective bits, nats): KIVI-4 and KIVI-2 at 5 and 3 bits, TurboQuant at 3.5 and 2.5.
constexpr std::array<std::pair<double, double>, 7> kFormatPrior = {
    {{1, 0.40}, {2, 0.15}, {3, 0.04}, {4.25, 0.01}, {5, 0.005}, {8.5, 0.0005}, {16, 0.00005}}};

double format_nats(double bits) {
  if (bits <= kFormatPrior.front().first) return kFormatPrior.front().second;
  for (std::size_t i = 1; i < kFormatPrior.size(); ++i) {
    const auto [b0, n0] = kFormatPrior[i - 1];
    const auto [b1, n1] = kFormatPrior[i];
    if (bits <= b1) return n0 * std::pow(n1 / n0, (bits - b0) / (b1 - b0));
  }
  return kFormatPrior.back().second;
}

// Nats at a quarter of the rows. By position alone whatever is far away is lost; selection has all rows to choose from, and
// still misses some where many are needed.
struct EvictionPrior {
  double by_scores;
  double by_position;
  double selected;
};
EvictionPrior eviction_nats(TaskKind kind) {
  switch (kind) {
    case TaskKind::kSingleFact: return {0.015, 0.20, 0.001};
    case TaskKind::kExtraction: return {0.06, 0.25, 0.015};
    case TaskKind::kSummary: return {0.08, 0.10, 0.006};
    case TaskKind::kFewShot: return {0.005, 0.03, 0.001};
    case TaskKind::kChat: return {0.03, 0.05, 0.003};
    case TaskKind::kReasoning: return {0.04, 0.08, 0.008};
  }
  return {0.08, 0.25, 0.015};
}

}  // namespace

Belief prior_of_format(double key_bits, double value_bits, TaskKind kind) {
  const double demand = kind == TaskKind::kExtraction || kind == TaskKind::kReasoning ? 1.5 : 1;
  // Each side adds its own error: fine keys do not make up for coarse values. Errors in keys pass the softmax and weigh more.
  const double mean = demand * (0.6 * format_nats(key_bits) + 0.4 * format_nats(value_bits));
  return {mean, 2 * mean + kLeastDoubt};
}

Belief prior_of_eviction(RowChoice choice, double share, TaskKind kind, bool question_seen) {
  if (share >= 0.999) return {0, kUnseenLoss};
  const EvictionPrior nats = eviction_nats(kind);
  // Scores of a question that was not seen keep the wrong rows; a window of positions, or a choice at every step, does not care.
  const double unseen = question_seen || choice != RowChoice::kByScores ? 1 : 3;
  const double shape = (1 - share) / std::sqrt(share) / 1.5;
  const double at_quarter = choice == RowChoice::kByScores     ? nats.by_scores
                            : choice == RowChoice::kByPosition ? nats.by_position
                                                               : nats.selected;
  const double mean = unseen * shape * at_quarter;
  return {mean, 2 * mean + kLeastDoubt};
}

double above_zero(const Belief& belief) {
  if (belief.sd <= 0) return std::max(belief.mean, 0.0);
  const double z = belief.mean / belief.sd;
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * std::numbers::pi);
  const double share_below = 0.5 * std::erfc(-z / std::numbers::sqrt2);
  return std::max(belief.sd * density + belief.mean * share_below, 0.0);
}

}  // namespace kvartet
