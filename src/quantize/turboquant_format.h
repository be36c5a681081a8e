// TurboQuant tiles (compression.md section 3): a row is rotated, its coordinates are coded with one Lloyd-Max codebook, and only
// its norm is stored beside the codes: ceil(D b / 8) + 2 bytes. Tiles have 128 rows in the layout of planar_rows.h.
//
// - Up to 4 bits the levels lie on an int8 grid (integer / 127 of the largest level): a byte table then does the look-up,
//   and the mean squared error grows by less than 0.3 %.
// - The stored norm is the least-squares one, g A / B of 3.2: the smallest error at every width, at no byte.
// - residual_signs (keys only, variant=prod of 3.3): b - 1 bits as above, and one bit per coordinate that sketches the error;
//   two norms. The sketch matrix S applies to the rotated error: a Gaussian S is one in every basis.
// - quarters (3.5): so many quarters of the channels, those with the most energy in the first rows, have one bit more; the two
//   parts have their own rotation, codebook and norm.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

// request: bits 1 to 8, quarters 0 to 3, rotation, residual_signs, seed. kUsage unless head_dim is a multiple of 32, and so
// are both parts; and for a combination that makes no sense.
Result<TileFormat> make_turboquant_format(const FormatRequest& request, Side side, int head_dim);

}  // namespace kvartet
