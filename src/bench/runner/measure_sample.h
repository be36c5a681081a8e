// One sample through several caches: one prefill, then likelihood, generation and byte accounts per cache.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/runner/prepared_sample.h"
#include "engine/engine.h"
#include "results/records.h"

namespace kvartet {

// Outcomes in the order of `specs`; scores are left to the caller. Fails only with kCancelled: when a cache cannot take
// the sample (memory, NaN, ...) each is tried alone, and the outcome of one that fails holds the reason.
Result<std::vector<Outcome>> measure_sample(Engine& engine, const PreparedSample& sample, std::span<const CacheSpec> specs,
                                            QuestionPosition position, const Engine::Progress& progress = {});

// f16 bytes of the keys and values of `tokens` tokens; in a layer with a sliding window only those inside it.
std::int64_t f16_bytes(const ModelShape& shape, int tokens);

}  // namespace kvartet
