// One sample through several caches: one prefill, then likelihood, generation and byte accounts per cache.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench/runner/prepared_sample.h"
#include "engine/engine.h"
#include "results/records.h"

namespace kvartet {

// Outcomes in the order of `specs`; scores are left to the caller. Fails only with kCancelled: when a cache cannot take
// the sample (memory, NaN, ...) each is tried alone, and the outcome of one that fails holds the reason.
Result<std::vector<Outcome>> measure_sample(Engine& engine, const PreparedSample& sample, std::span<const CacheSpec> specs,
                                            QuestionPosition position, const Engine::Progress& progress = {});

// Most tokens of an answer by canonical spec, where a study allows a cache fewer than the task does.
using AnswerCaps = std::map<std::string, int>;
// The same, capped caches in a prefill of their own, since one batch has one limit. Scores of cut answers mean what the study
// makes of them: this is how the papers' own runs differ from method to method.
Result<std::vector<Outcome>> measure_capped_sample(Engine& engine, const PreparedSample& sample, std::span<const CacheSpec> specs,
                                                   QuestionPosition position, const AnswerCaps& caps,
                                                   const Engine::Progress& progress = {});

// f16 bytes of the keys and values of `tokens` tokens; in a layer with a sliding window only those inside it.
std::int64_t f16_bytes(const ModelShape& shape, int tokens);

}  // namespace kvartet
