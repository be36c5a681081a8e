// Ranking of rows that need not be in the order of their positions (R9: equal scores go to the lower position).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvartet {

// The `count` best of the rows whose position is below `end`, ascending by row. NaN ranks last.
std::vector<std::int32_t> best_rows(std::span<const float> scores, std::span<const std::int32_t> positions, int end, int count);

// The row that best_rows leaves out when all but one stay: of those whose position is below `end`, the lowest score, of equals
// the highest position. -1: none.
std::int32_t worst_row(std::span<const float> scores, std::span<const std::int32_t> positions, int end);

}  // namespace kvartet
