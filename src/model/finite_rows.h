// Numbers that a layer must not hand on.
#pragma once

#include <cstdint>
#include <span>

#include "core/matrix.h"
#include "core/status.h"

namespace kvartet {

bool all_finite(MatView<const float> rows);

// Keys and values that are not finite are refused by whatever encodes them, logits by the sampler. Queries nobody else looks at:
// softmax gives a logit that is no number no weight, and the text would go on as if those heads had seen nothing.
// kBadInput naming layer and position of the first row of `queries` [tokens, heads * head_dim] that is not finite.
Status check_queries(int layer, MatView<const float> queries, std::span<const std::int32_t> positions);

}  // namespace kvartet
