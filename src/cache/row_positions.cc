#include "cache/row_positions.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>

#include "core/check.h"

namespace kvartet {
namespace {

constexpr std::size_t kBytes = sizeof(std::int32_t);

std::size_t offset_in_tile(int row) { return static_cast<std::size_t>(row % RowPositions::kTileRows) * kBytes; }

}  // namespace

void RowPositions::set(int row, std::int32_t position) {
  KV_CHECK(row <= rows_ && run_.owns(row));
  std::memcpy(run_.tile_of(row) + offset_in_tile(row), &position, kBytes);
  rows_ = std::max(rows_, row + 1);
}

std::int32_t RowPositions::at(int row) const {
  KV_CHECK(row >= 0 && row < rows_);
  std::int32_t position = 0;
  std::memcpy(&position, run_.tile_of(row) + offset_in_tile(row), kBytes);
  return position;
}

std::vector<std::int32_t> RowPositions::all() const {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(rows_));
  for (int row = 0; row < rows_; ++row) positions[static_cast<std::size_t>(row)] = at(row);
  return positions;
}

ByteAccount RowPositions::bytes_of(int rows) {
  const auto count = static_cast<std::size_t>(rows);
  const std::size_t tiles = (count + kTileRows - 1) / kTileRows;
  return {count * kBytes, tiles * kTileRows * kBytes};
}

void RowPositions::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  run_.for_each_tile([&](int index, const Buffer& tile) {
    const int live = std::clamp(rows_ - index * kTileRows, 0, kTileRows);
    out->push_back({fmt::format("{} tile {}", prefix, index),
                    1,
                    Tier::kRam,
                    {static_cast<std::size_t>(live) * kBytes, tile.size()},
                    tile.data()});
  });
}

}  // namespace kvartet
