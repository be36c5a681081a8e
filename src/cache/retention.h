// Which rows a layer keeps, and where: the evict and merge half of a spec, carried down to row numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/spec.h"
#include "core/scores.h"
#include "core/status.h"
#include "evict/snapkv.h"
#include "evict/streaming.h"
#include "merge/cam.h"

namespace kvartet {

// Shares of the budget refer to the first prompt and are fixed by it; a cache that starts by single rows had one of 0 tokens.
SnapKvOptions snapkv_options(const CacheSpec& spec, int first_prompt);
StreamingOptions streaming_options(const CacheSpec& spec, int first_prompt);
// h2o, tova, cam: rows per head between steps are at most this, with cam up to interval - 1 more.
int row_bound(const CacheSpec& spec, int first_prompt);

// What a layer with a sliding window makes of a spec: the model's window is the only eviction there and its rows stay at
// hand, so that of the four questions only "how is a row written" is left (docs/decisions/0004-sliding-windows.md).
CacheSpec windowed_layer_spec(const CacheSpec& spec);

// Where a layer stands in the model: pyramidkv keeps more rows in the lower ones.
struct LayerPlace {
  int index = 0;
  int count = 1;
};

// Rows per head after a first prompt and `generated` decode steps. adakv: their mean over the layer's heads.
int rows_after(const CacheSpec& spec, const LayerPlace& place, int first_prompt, int generated);

// What is known about the rows that one head holds.
struct KnownRows {
  std::vector<std::int32_t> positions;
  std::vector<float> sums;         // of the weights they received; empty unless the spec keeps them
  std::vector<float> window_sums;  // of those since the observation window began; empty unless the spec keeps them
};

// Where `tokens` new tokens go. A *column* is an old row, or behind them a new token.
struct Arrival {
  struct Replacement {
    int row = 0;    // an old row that leaves
    int token = 0;  // the new token that takes its place
  };
  bool all = true;                                // every token is appended
  std::vector<std::vector<std::int32_t>> pick;    // otherwise, per KV head: the tokens appended, in row order
  std::vector<std::vector<Replacement>> replace;  // per KV head; empty: none
  std::vector<std::vector<float>> sums;           // per KV head: of all columns from now on; empty: old ones stay, new ones are 0
  std::vector<std::vector<Merge>> merges;         // per KV head, in columns, before rows leave; empty: none

  std::int32_t token(int kv_head, int appended) const {
    return all ? appended : pick[static_cast<std::size_t>(kv_head)][static_cast<std::size_t>(appended)];
  }
  std::span<const Replacement> replaced(std::size_t kv_head) const {
    return replace.empty() ? std::span<const Replacement>() : std::span<const Replacement>(replace[kv_head]);
  }
  std::span<const Merge> merged(std::size_t kv_head) const {
    return merges.empty() ? std::span<const Merge>() : std::span<const Merge>(merges[kv_head]);
  }
};

struct ArrivalRequest {
  LayerPlace place;
  int kv_heads = 0;
  int first_prompt = 0;  // tokens of the layer's first prompt
  int seen = 0;          // tokens before
  int tokens = 0;        // new ones
  bool prompt = false;   // not a decode step, after which rows may leave
  const LayerScores* scores = nullptr;
  std::span<const KnownRows> known;  // [kv_heads], when rows leave by rank
};

// kInternal: the method must choose rows and got no scores to choose by.
Result<Arrival> plan_arrival(const CacheSpec& spec, const ArrivalRequest& request);

// cam over snapkv: the last steps before a pass are its observation window, as many as the spec says but no more than lie
// between two passes, so that one sum per row is enough to remember them.
struct ObservedStep {
  bool counts = false;  // this step's weights are added to window_sums
  bool begins = false;  // which start at zero before
};
// `rows`: of a head, this step's included.
ObservedStep observed_step(const CacheSpec& spec, int first_prompt, int rows);

// What a decode step does to one head after attention.
struct Departure {
  std::vector<std::int32_t> leaving;  // rows, as many in every head
  std::vector<Merge> merges;          // before they leave
};

struct DepartureRequest {
  LayerPlace place;
  int first_prompt = 0;
  int seen = 0;                                 // tokens, this step's included
  std::span<const KnownRows> known;             // [kv_heads]; sums include this step
  std::span<const std::vector<float>> weights;  // [kv_heads][rows]: this step's, the mean over the head's query heads
};

std::vector<Departure> plan_departure(const CacheSpec& spec, const DepartureRequest& request);

}  // namespace kvartet
