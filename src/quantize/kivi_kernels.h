// Scores and weighted sums over KIVI's codes in integers.
#pragma once

#include "quantize/tile_format.h"

namespace kvartet {

struct KiviKernels {
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;
};
KiviKernels kivi_kernels_avx512(int bits, int head_dim);  // null where the CPU or these rows do not suit them

}  // namespace kvartet
