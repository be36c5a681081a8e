// Scores and weighted sums over q8_0's codes in integers.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

struct Q8Kernels {
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;
};
Q8Kernels q8_0_kernels_avx512(int head_dim);  // null where the CPU or these rows do not suit them

}  // namespace kvartet
