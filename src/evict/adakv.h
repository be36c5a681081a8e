// AdaKV (compression.md 6.5): SnapKV's scores, one layer's budget shared out over its heads by need.
#pragma once

#include "evict/plan.h"
#include "evict/snapkv.h"

namespace kvartet {

// Rows kept per KV head: its window, its own best floor(alpha * B) of the prefix, and the best of what is left over all heads
// until kv_heads * B prefix rows are kept, B = capacity - window. Equal scores go to the lower head, then the lower row.
// alpha = 1 or a single head is SnapKV.
KeepPlan adakv_plan(const LayerScores& scores, int kv_heads, const SnapKvOptions& options, double alpha);

}  // namespace kvartet
