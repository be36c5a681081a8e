// What `higgs4` rows are looked up with by byte permutations (offload/row_places_avx512.cc): the grid cut in bytes, and where a
// row's codes have to stand for the numbers to come out in order.
#pragma once

#include <cstdint>

#include "quantize/tile_format.h"

namespace kvartet {

// For one side and head_dim.
struct Higgs4Tables {
  static bool exist(int head_dim) { return head_dim == 64 || head_dim == 128 || head_dim == 256; }
  // exist(head_dim). Made once for the process.
  static const Higgs4Tables& of(Side which, int head_dim);

  // Lower bytes of the first numbers, their upper bytes, and those of the second numbers.
  alignas(64) std::uint8_t planes[4][256] = {};
  // Where one or two vectors of bytes find a row's codes: of keys whose neighbours turn together, and whose halves do; of
  // values, one.
  alignas(64) std::uint8_t orders[2][2][64] = {};
};

}  // namespace kvartet
