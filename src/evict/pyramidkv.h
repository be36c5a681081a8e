// PyramidKV (compression.md 6.4): SnapKV with budgets that shrink linearly from the first layer to the last.
#pragma once

#include "evict/snapkv.h"

namespace kvartet {

struct PyramidOptions {
  SnapKvOptions snap;  // capacity: the mean over the layers, window included
  int beta = 20;       // the last layer gets 1 / beta of the mean
};

// Rows that each layer would keep of a prompt of `tokens`, window included. Over all layers exactly layers * capacity rows: the
// line between the two ends is rounded down and the rows left over go to the first layers that were rounded (the published
// integer steps overshoot, by 4.6 % at a budget of 128). Prompts below twice the budget are cut evenly, as the source does.
int pyramid_capacity(int tokens, const PyramidOptions& options, int layer, int layers);

}  // namespace kvartet
