// Attention over rows of the slow tier where they lie: a tile of *addresses*, and formats that score and accumulate through it.
//
// To attention it is a tile like any other (quantize/tile_format.h). Its rows are as the codec wrote them: keys that lie
// unrotated are turned as they are read, and of HIGGS values the codes are summed and the sum is transformed, once per query.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/rope_table.h"
#include "offload/row_codec.h"
#include "quantize/tile_format.h"

namespace kvartet {

// The tile. Rows of a mapped file may turn out unreadable while they are read: then `failed` is set, their logits are 0, and
// what attention made of them is of no use.
struct RowPlaces {
  const std::byte* rows[kBlockRows];
  std::int32_t positions[kBlockRows];
  std::int32_t count;
  mutable std::uint32_t failed;
  const RopeTable* rope;    // null: keys lie rotated
  const std::byte* mapped;  // the map that rows may lie in; null: all lie in memory
  std::size_t mapped_bytes;
};

// Of a row in a tile of places.
inline constexpr std::size_t kPlaceBytes = sizeof(std::byte*) + sizeof(std::int32_t);

// One side of rows as a codec writes them.
struct RowSide {
  RowFormat format = RowFormat::kF16;
  int head_dim = 0;
  std::size_t at = 0;         // of the side, in a row
  std::size_t row_bytes = 0;  // of the whole row
  bool unrotated = false;     // keys only
};

// Rows in these formats can be attended to where they lie.
bool can_read_in_place(RowFormat format);
// can_read_in_place(side.format), and RowCodec::create has taken it.
TileFormat make_places_format(const RowSide& side, Side which);

}  // namespace kvartet
