// StreamingLLM in its absolute-position form (compression.md 6.1 b): keep the first tokens (sinks) and the last ones.
//
// Which tokens stay follows from the count of tokens seen, so nothing is ever moved: the token at position p >= sinks
// lives in slot sinks + (p - sinks) mod window, and a new token takes the slot of the one that leaves. Row order is
// therefore not position order; attention does not care, since keys carry their angle.
#pragma once

#include <cstdint>

#include "evict/plan.h"

namespace kvartet {

struct StreamingOptions {
  int sinks = 4;     // first tokens, kept for ever
  int window = 512;  // last tokens, >= 1
};

// Rows held after `seen` tokens: min(seen, sinks + window).
int streaming_rows(int seen, const StreamingOptions& options);

// The row of the token at `position`.
int streaming_slot(int position, const StreamingOptions& options);

// The position held by `slot` < streaming_rows(seen) after `seen` tokens.
int streaming_position(int slot, int seen, const StreamingOptions& options);

// The positions kept after `seen` tokens, ascending, the same for every head.
KeepPlan streaming_plan(int seen, int kv_heads, const StreamingOptions& options);

}  // namespace kvartet
