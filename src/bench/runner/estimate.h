// What a benchmark will cost, before it is run: rough hours, and the bytes of its largest sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/runner/benchmark.h"
#include "cache/spec.h"
#include "core/model_shape.h"

namespace kvartet {

// Measured by the caller on a short prompt.
struct RunRates {
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;  // of one sequence
  double open_s = 0;               // to open the model: every run alone does
};

struct RunEstimate {
  double hours = 0;  // every answer at its longest, no gain from decoding caches as one batch, rates as given at every length
  double solo_hours = 0;  // of them for the runs of each cache alone
  std::int64_t solo_runs = 0;
  std::size_t cache_bytes = 0;   // of all caches together, at the end of the largest sample
  std::size_t fast_bytes = 0;    // of them in the fast tier
  int shared_prompts = 0;        // whose beginning is computed for an earlier one: counted without it
  std::size_t shared_bytes = 0;  // of the largest such beginning, held beside the caches
};

// `solo`: runs of each cache alone, per task and context (bench/runner/solo.h).
RunEstimate estimate_run(std::span<const PlannedTask> plan, std::span<const CacheSpec> specs, const ModelShape& shape,
                         const RunRates& rates, int solo = 0);

}  // namespace kvartet
