// QJL key tiles (compression.md 3.9): the signs of a sketch S k of `sketch` rows, and |k| as f16: sketch / 8 + 2 bytes. Queries
// are sketched, not quantized: logit = |k| / (c_1 sketch) * sum over j of sign_j (S q)_j, unbiased over draws of S. The rows of S
// are orthogonal in blocks of head_dim and sqrt(head_dim) long, as in the authors' code; c_1 is the exact constant for such rows
// (3.3), which goes to sqrt(2 / pi). Outlier channels are not kept apart. Tiles as in planar_rows.h.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

// request: sketch, a multiple of 32 up to 1,024; seed. kUsage for anything else, and for values.
Result<TileFormat> make_qjl_format(const FormatRequest& request, Side side, int head_dim);

}  // namespace kvartet
