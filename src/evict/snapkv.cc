#include "evict/snapkv.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "core/check.h"

namespace kvartet {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

// Mean over the query heads of one KV head of the weights that the last `window` queries give to rows [0, prefix).
std::vector<double> prefix_scores(const LayerScores& scores, int kv_head, int group, int window, std::size_t prefix) {
  std::vector<double> sums(prefix, 0.0);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const MatView<const float> rows = scores.head_window(head);
    for (std::size_t i = rows.rows - static_cast<std::size_t>(window); i < rows.rows; ++i) {
      const float* weights = rows.row(i);
      for (std::size_t t = 0; t < prefix; ++t) sums[t] += static_cast<double>(weights[t]);
    }
  }
  for (double& sum : sums) sum /= group;
  return sums;
}

}  // namespace

bool snapkv_is_idle(int tokens, const SnapKvOptions& options) { return tokens <= options.capacity || tokens <= options.window; }

KeepPlan snapkv_plan(const LayerScores& scores, int kv_heads, const SnapKvOptions& options) {
  KV_CHECK(kv_heads > 0 && scores.heads % kv_heads == 0);
  KeepPlan plan;
  plan.rows.resize(static_cast<std::size_t>(kv_heads));
  if (snapkv_is_idle(scores.tokens, options)) {
    for (std::vector<std::int32_t>& rows : plan.rows) {
      rows.resize(static_cast<std::size_t>(scores.tokens));
      std::iota(rows.begin(), rows.end(), 0);
    }
    return plan;
  }
  KV_CHECK(options.window >= 1 && options.window <= options.capacity && options.kernel % 2 == 1);
  KV_CHECK(scores.window_rows >= options.window);
  const int prefix = scores.tokens - options.window;
  for (int h = 0; h < kv_heads; ++h) {
    std::vector<std::int32_t>& rows = plan.rows[static_cast<std::size_t>(h)];
    rows = top_rows(snapkv_scores(scores, h, kv_heads, options), options.capacity - options.window);
    for (int t = prefix; t < scores.tokens; ++t) rows.push_back(t);
  }
  return plan;
}

std::vector<std::int32_t> snapkv_rows(std::span<const float> sums, std::span<const std::int32_t> positions, int seen,
                                      const SnapKvOptions& options) {
  KV_CHECK(sums.size() == positions.size() && options.window <= options.capacity);
  std::vector<std::int32_t> before;  // rows before the window, in the order of their positions
  std::vector<std::int32_t> staying;
  for (std::int32_t row = 0; row < std::ssize(positions); ++row) {
    const bool in_window = positions[static_cast<std::size_t>(row)] >= seen - options.window;
    (in_window ? staying : before).push_back(row);
  }
  std::sort(before.begin(), before.end(), [&](std::int32_t a, std::int32_t b) {
    return positions[static_cast<std::size_t>(a)] < positions[static_cast<std::size_t>(b)];
  });
  std::vector<double> scores;
  for (const std::int32_t row : before) scores.push_back(static_cast<double>(sums[static_cast<std::size_t>(row)]));
  const int room = options.capacity - static_cast<int>(staying.size());
  for (const std::int32_t best : top_rows(pool_scores(scores, options.kernel, options.pool), room))
    staying.push_back(before[static_cast<std::size_t>(best)]);
  std::sort(staying.begin(), staying.end());
  return staying;
}

std::vector<double> snapkv_scores(const LayerScores& scores, int kv_head, int kv_heads, const SnapKvOptions& options) {
  const auto prefix = static_cast<std::size_t>(scores.tokens - options.window);
  return pool_scores(prefix_scores(scores, kv_head, scores.heads / kv_heads, options.window, prefix), options.kernel,
                     options.pool);
}

std::vector<double> pool_scores(std::span<const double> scores, int kernel, Pool pool) {
  const std::ptrdiff_t n = std::ssize(scores);
  const std::ptrdiff_t half = kernel / 2;
  std::vector<double> pooled(scores.size());
  for (std::ptrdiff_t t = 0; t < n; ++t) {
    const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(0, t - half);
    const std::ptrdiff_t end = std::min(n, t + half + 1);
    const double* first = scores.data() + begin;
    const double* last = scores.data() + end;
    pooled[static_cast<std::size_t>(t)] =
        pool == Pool::kMax ? *std::max_element(first, last) : std::accumulate(first, last, 0.0) / kernel;
  }
  return pooled;
}

std::vector<std::int32_t> top_rows(std::span<const double> scores, int count) {
  std::vector<double> ranked(scores.begin(), scores.end());
  for (double& score : ranked) {
    if (std::isnan(score)) score = kLowest;  // NaN would break the order that sorting relies on
  }
  std::vector<std::int32_t> rows(ranked.size());
  std::iota(rows.begin(), rows.end(), 0);
  const auto kept = std::min<std::ptrdiff_t>(count, std::ssize(rows));
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const double score_a = ranked[static_cast<std::size_t>(a)];
    const double score_b = ranked[static_cast<std::size_t>(b)];
    return score_a != score_b ? score_a > score_b : a < b;
  };
  if (kept < std::ssize(rows)) std::nth_element(rows.begin(), rows.begin() + kept, rows.end(), better);
  rows.resize(static_cast<std::size_t>(kept));
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace kvartet
