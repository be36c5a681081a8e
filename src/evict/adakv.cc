#include "evict/adakv.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <tuple>

#include "core/check.h"

namespace kvartet {
namespace {

struct Candidate {
  double score;
  std::int32_t head;
  std::int32_t row;
  bool operator<(const Candidate& o) const {  // better first
    return std::tuple(-score, head, row) < std::tuple(-o.score, o.head, o.row);
  }
};

}  // namespace

KeepPlan adakv_plan(const LayerScores& scores, int kv_heads, const SnapKvOptions& options, double alpha) {
  KV_CHECK(alpha >= 0 && alpha <= 1);
  if (snapkv_is_idle(scores.tokens, options)) return snapkv_plan(scores, kv_heads, options);
  const int budget = options.capacity - options.window;
  const int reserved = static_cast<int>(alpha * budget + 1e-9);
  KeepPlan plan;
  std::vector<Candidate> rest;
  for (int h = 0; h < kv_heads; ++h) {
    std::vector<double> pooled = snapkv_scores(scores, h, kv_heads, options);
    for (double& score : pooled) {
      if (std::isnan(score)) score = std::numeric_limits<double>::lowest();
    }
    const std::vector<std::int32_t>& own = plan.rows.emplace_back(top_rows(pooled, reserved));
    for (std::int32_t row = 0; row < static_cast<std::int32_t>(pooled.size()); ++row) {
      if (!std::binary_search(own.begin(), own.end(), row)) rest.push_back({pooled[static_cast<std::size_t>(row)], h, row});
    }
  }
  const auto shared = std::min<std::ptrdiff_t>(std::ptrdiff_t{kv_heads} * (budget - reserved), std::ssize(rest));
  if (shared < std::ssize(rest)) std::nth_element(rest.begin(), rest.begin() + shared, rest.end());
  for (std::ptrdiff_t i = 0; i < shared; ++i) {
    const Candidate& c = rest[static_cast<std::size_t>(i)];
    plan.rows[static_cast<std::size_t>(c.head)].push_back(c.row);
  }
  for (std::vector<std::int32_t>& rows : plan.rows) {
    std::sort(rows.begin(), rows.end());
    for (int t = scores.tokens - options.window; t < scores.tokens; ++t) rows.push_back(t);
  }
  return plan;
}

}  // namespace kvartet
