// KIVI tiles (compression.md section 2): b-bit codes c with an f16 scale s and zero point z per group, x ~ s * c + z.
// Keys are grouped per channel over `group` consecutive tokens (so they are encoded `group` rows at a time), values per
// token over `group` consecutive channels (so any row may be overwritten at any time). Tiles have 128 rows.
//
// Both sides cut their lanes (keys: tokens, values: channels) in blocks of 32, and their steps (keys: channels, values:
// tokens) in words of 32 / b consecutive steps; step j of a word has the bits [b * j, b * (j + 1)). 3-bit
// codes do not fill words: 32 steps take three of them, in the planes of planar_rows.h.
// Keys:   words u32 [128 / 32][head_dim * b / 32][32 tokens], scales f16 [128 / group][head_dim], zeros likewise.
// Values: words u32 [head_dim / 32][128 * b / 32][32 channels], scales f16 [head_dim / group][128], zeros likewise.
// So both kernels walk their words from the first to the last.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

// request: bits 2, 3, 4 or 8; group 32, 64 or 128. kUsage for anything else, and unless `group` divides head_dim (2.2).
Result<TileFormat> make_kivi_format(const FormatRequest& request, Side side, int head_dim);

}  // namespace kvartet
