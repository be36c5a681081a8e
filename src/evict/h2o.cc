#include "evict/h2o.h"

#include <algorithm>
#include <cstddef>

#include "core/check.h"
#include "evict/ranking.h"

namespace kvartet {

H2oOptions h2o_options(int budget, double recent_share) {
  KV_CHECK(budget >= 1);
  const int recent = std::clamp(static_cast<int>(recent_share * budget + 1e-9), 1, budget);
  return {.heavy = budget - recent, .recent = recent};
}

std::vector<std::int32_t> h2o_rows(std::span<const float> sums, std::span<const std::int32_t> positions, int seen,
                                   const H2oOptions& options) {
  KV_CHECK(options.recent >= 1 && options.heavy >= 0);
  const int first_recent = std::max(0, seen - options.recent);
  std::vector<std::int32_t> rows = best_rows(sums, positions, first_recent, options.heavy);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] >= first_recent) rows.push_back(static_cast<std::int32_t>(row));
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::vector<std::vector<float>> group_means(const LayerScores& scores, int kv_heads) {
  KV_CHECK(kv_heads > 0 && scores.heads % kv_heads == 0);
  const int group = scores.heads / kv_heads;
  std::vector<std::vector<float>> means;
  for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
    std::vector<float> mean(static_cast<std::size_t>(scores.tokens), 0.0F);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const std::span<const float> sums = scores.head_sums(head);
      for (std::size_t t = 0; t < mean.size(); ++t) mean[t] += sums[t];
    }
    for (float& x : mean) x /= static_cast<float>(group);
    means.push_back(std::move(mean));
  }
  return means;
}

}  // namespace kvartet
