// q8_0 (compression.md 7.1): blocks of 32 channels of one row share a scale d = amax / 127, stored as f16; codes are int8.
// 34 bytes per 32 elements. Tiles have 64 rows; any row may be overwritten at any time.
//
// Keys:   codes [64 / 32][head_dim][32 tokens], then scales [head_dim / 32][64 tokens].
// Values: codes [head_dim / 32][64 tokens][32 channels], then scales [head_dim / 32][64 tokens].
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

// kUsage unless head_dim is a multiple of 32.
Result<TileFormat> make_q8_0_format(const FormatRequest& request, Side side, int head_dim);

}  // namespace kvartet
