#include "model/exact_layer.h"

#include <algorithm>

#include "attention/prefill_attention.h"
#include "core/check.h"
#include "core/clock.h"

namespace kvartet {

LayerSealing::LayerSealing(std::span<SequenceCache* const> caches, int threads)
    : caches_(caches.begin(), caches.end()), threads_(threads), seconds_(caches.size(), 0.0) {
  for (const SequenceCache* cache : caches) {
    need_.merge(cache->score_need());
    wants_pre_ = wants_pre_ || cache->wants_pre_rope_keys();
  }
}

// In a layer with a sliding window nothing is chosen, so there are no scores.
Status LayerSealing::seal(int layer, const LayerShape& shape, const ExactLayer& exact) {
  const double begin = Clock::real().seconds();
  LayerRows rows{.key = exact.key, .key_pre = exact.key_pre, .value = exact.value};
  if (!wants_pre_) rows.key_pre = {};
  if (need_.queries > 0) rows.queries = exact.last_queries;
  LayerScores scores;
  if (shape.window == 0 && need_.window > 0) {
    const int observed = std::min(need_.window, static_cast<int>(exact.key.tokens));
    export_window_scores(exact.last_queries, exact.key, observed, threads_, &scores);
    rows.scores = &scores;
  }
  if (shape.window == 0 && need_.column_sums) {
    scores.heads = shape.heads;
    scores.tokens = static_cast<int>(exact.key.tokens);
    scores.column_sums.assign(exact.column_sums.begin(), exact.column_sums.end());
    KV_CHECK(scores.column_sums.size() == static_cast<std::size_t>(shape.heads) * exact.key.tokens);
    rows.scores = &scores;
  }
  return seal(layer, rows, Clock::real().seconds() - begin);
}

Status LayerSealing::seal(int layer, const LayerRows& rows, double score_seconds) {
  spent_ += score_seconds;
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const double begin = Clock::real().seconds();
    KV_TRY(caches_[i]->seal_prompt(layer, rows));
    const double own = Clock::real().seconds() - begin;
    seconds_[i] += own;
    spent_ += own;
    if (rows.scores != nullptr && caches_[i]->score_need().any()) seconds_[i] += score_seconds;
  }
  return {};
}

void LayerSealing::finish(int tokens) {
  for (SequenceCache* cache : caches_) cache->finish_prompt(tokens);
}

}  // namespace kvartet
