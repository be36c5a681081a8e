#include "evict/ranking.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "core/check.h"
#include "core/uz.h"

namespace kvartet {
namespace {

struct Ranked {
  float score;
  std::int32_t position;
  std::int32_t row;
  bool operator<(const Ranked& other) const {  // better first
    return score != other.score ? score > other.score : position < other.position;
  }
};

}  // namespace

std::vector<std::int32_t> best_rows(std::span<const float> scores, std::span<const std::int32_t> positions, int end, int count) {
  KV_CHECK(scores.size() == positions.size());
  std::vector<Ranked> ranked;
  ranked.reserve(scores.size());
  for (std::size_t row = 0; row < scores.size(); ++row) {
    if (positions[row] >= end) continue;
    const float score = std::isnan(scores[row]) ? -std::numeric_limits<float>::infinity() : scores[row];
    ranked.push_back({score, positions[row], static_cast<std::int32_t>(row)});
  }
  const auto kept = std::clamp<std::ptrdiff_t>(count, 0, std::ssize(ranked));
  if (kept < std::ssize(ranked)) std::nth_element(ranked.begin(), ranked.begin() + kept, ranked.end());
  std::vector<std::int32_t> rows;
  for (std::ptrdiff_t i = 0; i < kept; ++i) rows.push_back(ranked[static_cast<std::size_t>(i)].row);
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::int32_t worst_row(std::span<const float> scores, std::span<const std::int32_t> positions, int end) {
  KV_CHECK(scores.size() == positions.size());
  std::int32_t worst = -1;
  float lowest = 0;
  for (std::size_t row = 0; row < scores.size(); ++row) {
    if (positions[row] >= end) continue;
    const float score = std::isnan(scores[row]) ? -std::numeric_limits<float>::infinity() : scores[row];
    if (worst >= 0 && (score > lowest || (score == lowest && positions[row] < positions[uz(worst)]))) continue;
    worst = static_cast<std::int32_t>(row);
    lowest = score;
  }
  return worst;
}

}  // namespace kvartet
