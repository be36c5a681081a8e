// llama.cpp's small block types (compression.md 7.1), and q3_0 by the same rule: 32 channels of one row share an f16 scale d,
// q4_1 also a minimum m.
//   q4_0: d = x_m / -8 for the entry x_m of largest magnitude, code = min(15, trunc(x / d + 8.5)), x ~ (code - 8) d
//   q5_0: the same with 16 and 31.   q3_0: with 4 and 7; llama.cpp has no such type.
//   q4_1: m = min, d = (max - min) / 15, code = min(15, trunc((x - m) / d + 0.5)).
// 18, 22, 14 and 20 bytes per 32 elements. Blocks are those of one row on both sides, so any row may be overwritten at any
// time. Tiles have 128 rows in the layout of quantize/planar_rows.h. Codes come from d (and m) as f16 holds them.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

// request.rotation: kNone or kHadamard (without signs, as llama.cpp's). kUsage unless head_dim is a multiple of 32.
Result<TileFormat> make_q3_0_format(const FormatRequest& request, Side side, int head_dim);
Result<TileFormat> make_q4_0_format(const FormatRequest& request, Side side, int head_dim);
Result<TileFormat> make_q4_1_format(const FormatRequest& request, Side side, int head_dim);
Result<TileFormat> make_q5_0_format(const FormatRequest& request, Side side, int head_dim);

// Wraps a format of blocks of 32 in the rotation that the request asks for; also for q8_0.
TileFormat rotated_as_asked(TileFormat plain, const FormatRequest& request);

}  // namespace kvartet
