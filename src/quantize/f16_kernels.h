// Scores and weighted sums over f16 rows, four vectors of lanes at a time.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

struct F16Kernels {
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;
};
F16Kernels f16_kernels_avx512(int head_dim);  // null where the CPU or these rows do not suit them

}  // namespace kvartet
