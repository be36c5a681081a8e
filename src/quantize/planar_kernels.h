// Scores and weighted sums over the codes of quantize/planar_rows.h.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

struct PlanarKernels {
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;
};
PlanarKernels planar_kernels();  // for this CPU

}  // namespace kvartet
