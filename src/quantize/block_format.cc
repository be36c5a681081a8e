#include "quantize/block_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/float16.h"
#include "core/uz.h"
#include "quantize/planar_rows.h"
#include "quantize/rotated_format.h"
#include "quantize/row_check.h"

namespace kvartet {
namespace {

constexpr std::size_t kBlock = 32;
constexpr std::size_t kMaxDim = 1024;

// Codes of a block from its step; `offset` is the code of zero, and the half that rounds what is cut off to the nearest.
void code_block(const float* x, float step, float offset, int most, std::uint8_t* codes) {
  for (std::size_t c = 0; c < kBlock; ++c) {
    const float steps = step == 0.0F ? 0.0F : x[c] / step + offset;
    const int code = static_cast<int>(std::min(std::max(steps, 0.0F), static_cast<float>(most)));
    codes[c] = static_cast<std::uint8_t>(code);
  }
}

// q3_0, q4_0 and q5_0: the signed entry of largest magnitude becomes code 0.
void quantize_symmetric(const float* x, int half, std::uint8_t* codes, std::uint16_t* scale) {
  float low = x[0];
  float high = x[0];
  for (std::size_t c = 1; c < kBlock; ++c) {
    low = std::min(low, x[c]);
    high = std::max(high, x[c]);
  }
  // Of two entries as large with opposite signs the first one counts.
  float extreme = -low > high ? low : high;
  if (-low == high && high > 0.0F) {
    for (std::size_t c = kBlock; c > 0; --c) extreme = std::abs(x[c - 1]) == high ? x[c - 1] : extreme;
  }
  *scale = f16_from_float(extreme / static_cast<float>(-half));
  const float step = float_from_f16(*scale);
  if (step == 0.0F) {
    std::memset(codes, half, kBlock);
    return;
  }
  code_block(x, step, static_cast<float>(half) + 0.5F, 2 * half - 1, codes);
}

void quantize_asymmetric(const float* x, std::uint8_t* codes, std::uint16_t* scale, std::uint16_t* minimum) {
  float low = x[0];
  float high = x[0];
  for (std::size_t c = 1; c < kBlock; ++c) {
    low = std::min(low, x[c]);
    high = std::max(high, x[c]);
  }
  *scale = f16_from_float((high - low) / 15.0F);
  *minimum = f16_from_float(low);
  const float first = float_from_f16(*minimum);
  float shifted[kBlock];
  for (std::size_t c = 0; c < kBlock; ++c) shifted[c] = x[c] - first;
  code_block(shifted, float_from_f16(*scale), 0.5F, 15, codes);
}

Status encode(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  const CodePart& part = format.planar->parts[0];
  KV_TRY(check_finite(rows, format.name.c_str(), 65520.0F));
  for (std::size_t r = 0; r < rows.rows; ++r) {
    const float* const x = rows.row(r);
    std::uint8_t codes[kMaxDim];
    std::uint16_t scales[kMaxDim / kBlock];
    std::uint16_t minima[kMaxDim / kBlock] = {};
    for (std::size_t c = 0; c < rows.cols; c += kBlock) {
      if (part.has_minimum) quantize_asymmetric(x + c, codes + c, scales + c / kBlock, minima + c / kBlock);
      if (!part.has_minimum) quantize_symmetric(x + c, 1 << (part.bits - 1), codes + c, scales + c / kBlock);
    }
    write_coded_row(part, format.side, tile, begin + static_cast<int>(r), {codes, scales, minima});
  }
  return {};
}

struct BlockType {
  const char* name;
  int bits;
  float bias;
  bool has_minimum;
};

Result<TileFormat> make_block_format(const BlockType& type, const FormatRequest& request, Side side, int head_dim) {
  if (uz(head_dim) % kBlock != 0) {
    return usage_error(
        fmt::format("{} needs a head dimension that is a multiple of 32, this model has {}; use full", type.name, head_dim));
  }
  PlanarRows rows;
  rows.part_count = 1;
  rows.inputs = head_dim;
  CodePart& part = rows.parts[0];
  part.channels = head_dim;
  part.bits = type.bits;
  part.group = static_cast<int>(kBlock);
  part.has_minimum = type.has_minimum;
  part.levels = whole_levels(type.bits, type.bias);
  TileFormat format = planar_format(type.name, side, head_dim, rows);
  format.bits = type.bits;
  format.group = part.group;
  format.group_bytes = type.has_minimum ? 4 : 2;
  format.kernels.encode = encode;
  return rotated_as_asked(std::move(format), request);
}

}  // namespace

TileFormat rotated_as_asked(TileFormat plain, const FormatRequest& request) {
  if (request.rotation == Rotation::kNone) return plain;
  const int head_dim = plain.head_dim;
  plain.name += "-hadamard";
  return with_rotation(std::move(plain), {request.rotation, {head_dim, 0}, 1, {}}, request.seed);
}

Result<TileFormat> make_q3_0_format(const FormatRequest& request, Side side, int head_dim) {
  return make_block_format({"q3_0", 3, 4.0F, false}, request, side, head_dim);
}
Result<TileFormat> make_q4_0_format(const FormatRequest& request, Side side, int head_dim) {
  return make_block_format({"q4_0", 4, 8.0F, false}, request, side, head_dim);
}
Result<TileFormat> make_q4_1_format(const FormatRequest& request, Side side, int head_dim) {
  return make_block_format({"q4_1", 4, 0.0F, true}, request, side, head_dim);
}
Result<TileFormat> make_q5_0_format(const FormatRequest& request, Side side, int head_dim) {
  return make_block_format({"q5_0", 5, 16.0F, false}, request, side, head_dim);
}

}  // namespace kvartet
