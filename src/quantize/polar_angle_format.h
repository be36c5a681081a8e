// Recursive polar coordinates of a rotated row (compression.md 3.10, Han et al.; not the method of the same name that turns
// RoPE pairs): blocks of 16 channels become one radius (f16) and 15 angles, eight of 4 bits on the first level, seven of 2 bits
// on the three levels above: 62 bits, 3.875 per channel.
//
// Both sides have tokens in lanes. A tile of 128 rows is [128 / 32 tokens][head_dim / 64] of
//   first angles  u32 [4 blocks][32 tokens]   block b: eight codes of 4 bits
//   other angles  u32 [32], u16 [32], u8 [32] 56 bits per token: 14 of each block, lowest first (levels 2, 3, 4)
//   radii         f16 [4 blocks][32 tokens]
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

// kUsage unless head_dim is a multiple of 64. request: rotation, seed.
Result<TileFormat> make_polar_angle_format(const FormatRequest& request, Side side, int head_dim);

}  // namespace kvartet
