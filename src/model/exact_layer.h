// What a first prompt leaves in one layer, and how the caches take it: the border between whoever has the rows (a prefill, or a
// file that kept one) and the caches.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/scores.h"
#include "core/status.h"

namespace kvartet {

// Whatever a cache can declare in score_need() follows from it: softmax rows of a window from the last queries and the keys.
struct ExactLayer {
  HeadRows<const float> key = {};      // [tokens, kv_heads, head_dim], after RoPE
  HeadRows<const float> key_pre = {};  // before RoPE; data == nullptr: nobody asked
  HeadRows<const float> value = {};
  HeadRows<const float> last_queries = {};  // [the last ones, heads, head_dim], after RoPE; none in a layer with a sliding window
  std::span<const float> column_sums = {};  // [heads, tokens]; empty: nobody asked, or the layer has a sliding window
};

// Shown every layer of a prefill before the caches take it and it is dropped.
using LayerKeeper = std::function<void(int layer, const ExactLayer& exact)>;

// Hands layers to empty caches: each gets the same rows, and the scores that any of them declared.
class LayerSealing {
 public:
  LayerSealing(std::span<SequenceCache* const> caches, int threads);

  const ScoreNeed& need() const { return need_; }  // of all caches together
  bool wants_pre_rope_keys() const { return wants_pre_; }

  // `exact` has what need() and wants_pre_rope_keys() ask for.
  Status seal(int layer, const LayerShape& shape, const ExactLayer& exact);
  // With scores that are there already, and took so many seconds.
  Status seal(int layer, const LayerRows& rows, double score_seconds);
  void finish(int tokens);

  // That this cache's compression takes alone: scores that several caches choose by count for each of them.
  double seconds(int cache) const { return seconds_[static_cast<std::size_t>(cache)]; }
  double spent() const { return spent_; }  // seconds that all of them took together: scores count once

 private:
  std::vector<SequenceCache*> caches_;
  int threads_;
  ScoreNeed need_;
  bool wants_pre_ = false;
  std::vector<double> seconds_;
  double spent_ = 0;
};

}  // namespace kvartet
