#include "quantize/q3_0_format.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/float16.h"
#include "quantize/block_format.h"
#include "quantize/planar_rows.h"
#include "quantize/row_check.h"

namespace kvartet {
namespace {

constexpr int kBits = 3;
constexpr int kBlock = 32;
constexpr float kHalf = 4.0F;  // steps on each side of zero
constexpr float kMostCode = 7.0F;
constexpr std::size_t kBlockSize = kBlock;

// Codes of a block, and its step as f16.
std::uint16_t code_block(const float* x, std::uint8_t* codes) {
  float largest = 0.0F;
  for (std::size_t c = 0; c < kBlockSize; ++c) largest = std::max(largest, std::abs(x[c]));
  const std::uint16_t scale = f16_from_float(largest / kHalf);
  const float step = float_from_f16(scale);
  for (std::size_t c = 0; c < kBlockSize; ++c) {
    const float steps = step == 0.0F ? kHalf : x[c] / step + kHalf;
    codes[c] = static_cast<std::uint8_t>(std::min(std::max(steps, 0.0F), kMostCode));
  }
  return scale;
}

Status encode(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  KV_TRY(check_finite(rows, format.name.c_str(), 65520.0F));
  for (std::size_t r = 0; r < rows.rows; ++r) {
    std::uint8_t codes[kPlanarMaxChannels];
    std::uint16_t scales[kPlanarMaxChannels / kBlockSize];
    for (std::size_t c = 0; c < rows.cols; c += kBlockSize) scales[c / kBlockSize] = code_block(rows.row(r) + c, codes + c);
    write_coded_row(format.planar->parts[0], format.side, tile, begin + static_cast<int>(r), {codes, scales});
  }
  return {};
}

}  // namespace

Result<TileFormat> make_q3_0_format(const FormatRequest& request, Side side, int head_dim) {
  if (head_dim % kBlock != 0) {
    return usage_error(
        fmt::format("q3_0 needs a head dimension that is a multiple of {}, this model has {}; use full", kBlock, head_dim));
  }
  PlanarRows rows;
  rows.part_count = 1;
  rows.inputs = head_dim;
  CodePart& part = rows.parts[0];
  part.channels = head_dim;
  part.bits = kBits;
  part.group = kBlock;
  part.levels = whole_levels(kBits, kHalf - 0.5F);
  TileFormat format = planar_format("q3_0", side, head_dim, rows);
  format.bits = kBits;
  format.group = kBlock;
  format.group_bytes = sizeof(std::uint16_t);
  format.kernels.encode = encode;
  return rotated_as_asked(std::move(format), request);
}

}  // namespace kvartet
