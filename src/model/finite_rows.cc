#include "model/finite_rows.h"

#include <bit>
#include <cstddef>

#include <fmt/format.h>

#include "core/check.h"

namespace kvartet {

// Infinities and NaNs have all exponent bits set: adding one to the exponent then reaches the sign bit.
bool all_finite(MatView<const float> rows) {
  std::uint32_t overflowed = 0;
  for (std::size_t r = 0; r < rows.rows; ++r) {
    for (const float v : rows.row_span(r)) overflowed |= (std::bit_cast<std::uint32_t>(v) & 0x7f800000U) + 0x00800000U;
  }
  return (overflowed & 0x80000000U) == 0;
}

Status check_queries(int layer, MatView<const float> queries, std::span<const std::int32_t> positions) {
  KV_CHECK(queries.rows == positions.size());
  if (all_finite(queries)) return {};
  std::size_t row = 0;
  while (all_finite(queries.row_range(row, row + 1))) ++row;
  return bad_input(
      fmt::format("layer {}: the queries of position {} are not all finite; attention needs finite numbers, check the model file",
                  layer, positions[row]));
}

}  // namespace kvartet
