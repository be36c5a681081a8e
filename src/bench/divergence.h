// First divergence: how long a cache, left to write by itself, writes exactly what `full` writes.
#pragma once

#include <span>
#include <vector>

#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// Of one cache over several starts.
struct Divergence {
  int runs = 0;
  int diverged = 0;        // runs whose text differed within the limit
  double same_tokens = 0;  // sum over runs: tokens before the first difference, at most the limit
  void add(int same, int limit) {
    ++runs;
    diverged += same < limit ? 1 : 0;
    same_tokens += same;
  }
  double mean() const { return runs == 0 ? 0 : same_tokens / runs; }  // a lower bound where some runs did not diverge
};

// Greedy text of sequences[0] and of the others, all after the same tokens: how many tokens each agrees with the first before
// it differs, `limit` if it never does within that. Ends of text are not heeded. Until it differs a cache is fed the tokens that
// it would have chosen itself, so all run as one batch and those that have differed leave it. The sequences end somewhere behind.
Result<std::vector<int>> tokens_until_divergence(Engine& engine, std::span<Sequence> sequences, int limit);

}  // namespace kvartet
