// f32 and f16 tiles: 64 rows; any row may be overwritten at any time.
//
// Keys:   [64 / 32][head_dim][32 tokens]: token lanes, so that scores need no sum across lanes.
// Values: [head_dim / 32][64 tokens][32 channels]; the last block has the channels that are left.
// So both kernels walk a tile from the first byte to the last.
#pragma once

#include <cstddef>
#include <span>

#include "quantize/tile_format.h"

namespace kvartet {

Result<TileFormat> make_f32_format(const FormatRequest& request, Side side, int head_dim);
// Rounds to nearest even; a magnitude that would round beyond 65504 is kBadInput.
Result<TileFormat> make_f16_format(const FormatRequest& request, Side side, int head_dim);

// A row whose numbers are f16 already, and the tile row that it becomes.
struct F16Row {
  const std::byte* numbers = nullptr;  // [head_dim], unaligned
  int at = 0;
};
// Puts rows, ascending by `at`, into a tile of f16: the bits that encode() writes of the same numbers. Numbers are not checked.
void put_f16_rows(const TileFormat& format, std::byte* tile, std::span<const F16Row> rows);
// As encode() rounds and refuses; out: [row.size()] f16, unaligned.
Status as_f16_row(std::span<const float> row, std::byte* out);

}  // namespace kvartet
