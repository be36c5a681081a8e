// Scores and weighted sums over the codes of quantize/planar_rows.h.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

struct PlanarKernels {
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;
};
PlanarKernels planar_kernels();  // for this CPU
// In integers; null where the CPU or these rows do not suit them.
PlanarKernels planar_kernels_avx512(const PlanarRows& rows);

}  // namespace kvartet
