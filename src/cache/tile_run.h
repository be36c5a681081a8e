// The memory of a run of rows: tiles at absolute multiples of their capacity, shared between forks until one writes.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/arena.h"
#include "core/status.h"

namespace kvartet {

// What a run needs to know of a format.
struct TileSize {
  int rows = 0;           // capacity
  std::size_t bytes = 0;  // of a whole tile
};

// Tile i holds rows [i * size.rows, (i + 1) * size.rows). A copy shares all tiles.
class TileRun {
 public:
  explicit TileRun(TileSize size) : size_(size) {}

  // Rows [begin, end) get tiles that belong to this run alone: missing ones are made, shared ones cloned. Tiles elsewhere
  // stay as they are, also absent. kExhausted: what was made before stays; keep_only gives it back.
  Status own(Arena& arena, int begin, int end);

  // Lets go of every tile without a row in [begin, end).
  void keep_only(int begin, int end);

  // The tile that holds `row`; null if there is none.
  std::byte* tile_of(int row) const;
  bool owns(int row) const;  // there is a tile for `row`, and no fork shares it

  TileSize size() const { return size_; }
  std::size_t allocated_bytes() const;  // of the tiles, from their buffers

  // Calls visit(tile index, buffer) for every tile, in order.
  template <typename Visit>
  void for_each_tile(const Visit& visit) const {
    for (std::size_t i = 0; i < tiles_.size(); ++i) {
      if (tiles_[i] != nullptr) visit(first_ + static_cast<int>(i), *tiles_[i]);
    }
  }

 private:
  std::shared_ptr<Buffer>* slot(int tile);  // grows the list to hold it

  TileSize size_;
  int first_ = 0;  // index of tiles_[0]
  std::vector<std::shared_ptr<Buffer>> tiles_;
};

}  // namespace kvartet
