// FP8 E4M3 tiles (compression.md 7.3): stored = e4m3(x / s), x ~ s * stored, one scale s per side and head: 1, or from the
// first rows (their largest magnitude becomes 448). What is larger saturates. Tiles have 64 rows; any row may be
// overwritten at any time. One byte per element:
// keys [64 / 32][head_dim][32 tokens], values [head_dim / 32][64 tokens][32 channels] (the last block may be narrower).
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

// request.calibrated: the scale from the first rows. kUsage unless head_dim is a multiple of 8.
Result<TileFormat> make_fp8_format(const FormatRequest& request, Side side, int head_dim);

}  // namespace kvartet
