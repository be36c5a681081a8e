// TOVA (compression.md 6.3): keep the rows that the last query attends to most, the same set for every head of a layer.
// No row is protected: the newest and the first may go.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/matrix.h"

namespace kvartet {

// The last query's weights, averaged over all heads. `weights`: [heads, rows].
std::vector<float> tova_scores(MatView<const float> weights);

// The `budget` best rows, ascending. Equal scores go to the lower position.
std::vector<std::int32_t> tova_rows(std::span<const float> scores, std::span<const std::int32_t> positions, int budget);

}  // namespace kvartet
