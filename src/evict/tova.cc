#include "evict/tova.h"

#include <limits>

#include "evict/ranking.h"

namespace kvartet {

std::vector<float> tova_scores(MatView<const float> weights) {
  std::vector<float> scores(weights.cols, 0.0F);
  for (std::size_t head = 0; head < weights.rows; ++head) {
    const float* const row = weights.row(head);
    for (std::size_t t = 0; t < scores.size(); ++t) scores[t] += row[t];
  }
  for (float& score : scores) score /= static_cast<float>(weights.rows);
  return scores;
}

std::vector<std::int32_t> tova_rows(std::span<const float> scores, std::span<const std::int32_t> positions, int budget) {
  return best_rows(scores, positions, std::numeric_limits<int>::max(), budget);
}

}  // namespace kvartet
