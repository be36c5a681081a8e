// f32 and f16 tiles: 64 rows. Keys are stored as token lanes [head_dim][64], values as rows [64][head_dim].
// Any row may be overwritten at any time.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

Result<TileFormat> make_f32_format(const FormatRequest& request, Side side, int head_dim);
// Rounds to nearest even; a magnitude that would round beyond 65504 is kBadInput.
Result<TileFormat> make_f16_format(const FormatRequest& request, Side side, int head_dim);

}  // namespace kvartet
