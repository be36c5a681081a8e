#include "cache/sink_keys.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/check.h"

namespace kvartet {
namespace {

std::size_t row_bytes(int head_dim) { return static_cast<std::size_t>(head_dim) * sizeof(float); }

}  // namespace

SinkKeys::SinkKeys(int head_dim) : head_dim_(head_dim), run_({kTileRows, kTileRows * row_bytes(head_dim)}) {}

std::byte* SinkKeys::place(int row) const {
  return run_.tile_of(row) + static_cast<std::size_t>(row % kTileRows) * row_bytes(head_dim_);
}

void SinkKeys::append(const float* key) {
  KV_CHECK(run_.owns(rows_));
  std::memcpy(place(rows_), key, row_bytes(head_dim_));
  ++rows_;
}

const float* SinkKeys::at(int row) const {
  KV_CHECK(row >= 0 && row < rows_);
  return reinterpret_cast<const float*>(place(row));
}

ByteAccount SinkKeys::bytes_of(int rows, int head_dim) {
  const auto count = static_cast<std::size_t>(rows);
  return {count * row_bytes(head_dim), (count + kTileRows - 1) / kTileRows * kTileRows * row_bytes(head_dim)};
}

void SinkKeys::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  run_.for_each_tile([&](int index, const Buffer& tile) {
    const auto live = static_cast<std::size_t>(std::clamp(rows_ - index * kTileRows, 0, kTileRows));
    out->push_back(
        {fmt::format("{} tile {}", prefix, index), 1, Tier::kRam, {live * row_bytes(head_dim_), tile.size()}, tile.data()});
  });
}

}  // namespace kvartet
