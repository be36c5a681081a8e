// Which of the arriving tokens a layer keeps, and where: the evict half of a spec, carried down to row numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/spec.h"
#include "core/scores.h"
#include "core/status.h"
#include "evict/snapkv.h"
#include "evict/streaming.h"

namespace kvartet {

// Shares of the budget refer to the first prompt and are fixed by it; a cache that starts by single rows had one of 0 tokens.
SnapKvOptions snapkv_options(const CacheSpec& spec, int first_prompt);
StreamingOptions streaming_options(const CacheSpec& spec, int first_prompt);

// What a layer with a sliding window makes of a spec: the model's window is the only eviction there and its rows stay at
// hand, so that of the four questions only "how is a row written" is left (docs/decisions/0004-sliding-windows.md).
CacheSpec windowed_layer_spec(const CacheSpec& spec);

// Rows per head after a first prompt and `generated` decode steps.
int rows_after(const CacheSpec& spec, int first_prompt, int generated);

// Where `tokens` new tokens go, on a layer that has seen `seen` before.
struct Arrival {
  struct Replacement {
    int row = 0;    // an old row that leaves
    int token = 0;  // the new token that takes its place
  };
  bool all = true;                              // every token is appended
  std::vector<std::vector<std::int32_t>> pick;  // otherwise, per KV head: the tokens appended, in row order
  std::vector<Replacement> replace;             // the same for all heads

  std::int32_t token(int kv_head, int appended) const {
    return all ? appended : pick[static_cast<std::size_t>(kv_head)][static_cast<std::size_t>(appended)];
  }
};

struct ArrivalRequest {
  int kv_heads = 0;
  int first_prompt = 0;  // tokens of the layer's first prompt
  int seen = 0;          // tokens before
  int tokens = 0;        // new ones
  const LayerScores* scores = nullptr;
};

// kInternal: the method must drop rows and got no scores to choose by.
Result<Arrival> plan_arrival(const CacheSpec& spec, const ArrivalRequest& request);

}  // namespace kvartet
