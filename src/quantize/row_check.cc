#include "quantize/row_check.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "quantize/row_rotation.h"

namespace kvartet {
namespace {

std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU; }

std::string describe(std::size_t row, std::size_t channel, float value, const char* format_name, float limit) {
  const std::uint32_t bits = magnitude_bits(value);
  if (bits >= 0x7f800000U) {
    return fmt::format("row {}, channel {} is {}; attention needs finite numbers, check the model file", row, channel,
                       bits > 0x7f800000U ? "NaN" : "infinite");
  }
  return fmt::format("row {}, channel {} is {}, too large for {} (its limit is {}); use f32", row, channel, value, format_name,
                     limit);
}

}  // namespace

Status check_finite(MatView<const float> rows, const char* format_name, float limit) {
  // Magnitudes order like their bits, with Inf and NaN on top: one integer maximum finds all three.
  const std::uint32_t limit_bits = limit > 0.0F ? magnitude_bits(limit) : 0x7f800000U;
  for (std::size_t r = 0; r < rows.rows; ++r) {
    const float* row = rows.row(r);
    std::uint32_t largest = 0;
    for (std::size_t c = 0; c < rows.cols; ++c) {
      const std::uint32_t bits = magnitude_bits(row[c]);
      largest = bits > largest ? bits : largest;
    }
    if (largest < limit_bits) continue;
    for (std::size_t c = 0; c < rows.cols; ++c) {
      if (magnitude_bits(row[c]) >= limit_bits) return bad_input(describe(r, c, row[c], format_name, limit));
    }
  }
  return {};
}

Status check_lengths(MatView<const float> rows, const char* format_name, float limit) {
  KV_TRY(check_finite(rows, format_name));
  for (std::size_t r = 0; r < rows.rows; ++r) {
    const float* row = rows.row(r);
    const float length = std::sqrt(sum_of_squares(row, rows.cols));
    if (length < limit) continue;
    std::size_t largest = 0;
    for (std::size_t c = 1; c < rows.cols; ++c) {
      if (magnitude_bits(row[c]) > magnitude_bits(row[largest])) largest = c;
    }
    return bad_input(fmt::format("row {} is {} long (its channel {} is {}), too long for {} (its limit is {}); use f32", r,
                                 length, largest, row[largest], format_name, limit));
  }
  return {};
}

}  // namespace kvartet
