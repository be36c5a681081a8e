// From logits to the next token. No state: the draw is a pure function of (logits, options, step), so a run can be
// resumed, batched or repeated with the same result.
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// kUsage: a temperature below 0 or a top_p outside (0, 1].
Status check_sampling(const SamplingOptions& options);

// logits: [vocab]. `step` counts the tokens drawn with this seed. Greedy at temperature 0, ties go to the lower id;
// otherwise softmax(logits / temperature), cut to the smallest set of most likely tokens that holds top_p (ties: lower
// id first) and renormalized. kInternal: a NaN among the logits, or no finite one.
Result<Token> sample(std::span<const float> logits, const SamplingOptions& options, std::uint64_t step);

}  // namespace kvartet
