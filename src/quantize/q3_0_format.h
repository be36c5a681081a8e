// q3_0: 32 channels of one row share an f16 scale d; the range [-x_m, x_m] of the largest magnitude x_m is cut in 8 equal steps:
//   d = x_m / 4, code = min(7, max(0, floor(x / d + 4))), x ~ (code - 3.5) d.
// 14 bytes per 32 elements. Nothing clips, no element is off by more than d / 2, and -x decodes to the negative of what x does;
// but zero is no level: it comes back as d / 2. llama.cpp has no such type; the blocks are laid out as q4_0's
// (quantize/block_format.h), in tiles of 128 rows (quantize/planar_rows.h). Codes come from d as f16 holds it.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

// request.rotation: kNone or kHadamard. kUsage unless head_dim is a multiple of 32.
Result<TileFormat> make_q3_0_format(const FormatRequest& request, Side side, int head_dim);

}  // namespace kvartet
