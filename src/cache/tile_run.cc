#include "cache/tile_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace kvartet {

std::shared_ptr<Buffer>* TileRun::slot(int tile) {
  if (tiles_.empty()) first_ = tile;
  KV_CHECK(tile >= first_);  // runs grow at the end and shrink at the front
  const std::size_t index = static_cast<std::size_t>(tile - first_);
  if (index >= tiles_.size()) tiles_.resize(index + 1);
  return &tiles_[index];
}

Status TileRun::own(Arena& arena, int begin, int end) {
  if (begin >= end) return {};
  for (int tile = begin / size_.rows; tile <= (end - 1) / size_.rows; ++tile) {
    std::shared_ptr<Buffer>& held = *slot(tile);
    if (held != nullptr && held.use_count() == 1) continue;
    KV_ASSIGN(Buffer fresh, arena.allocate(size_.bytes));
    if (held != nullptr) std::memcpy(fresh.data(), held->data(), size_.bytes);
    held = std::make_shared<Buffer>(std::move(fresh));
  }
  return {};
}

void TileRun::keep_only(int begin, int end) {
  if (begin >= end) {
    tiles_.clear();
    return;
  }
  const int first = begin / size_.rows;
  const int last = (end - 1) / size_.rows;
  if (first > first_) {
    const std::ptrdiff_t gone = std::min<std::ptrdiff_t>(first - first_, std::ssize(tiles_));
    tiles_.erase(tiles_.begin(), tiles_.begin() + gone);
    first_ = first;
  }
  if (last + 1 - first_ < std::ssize(tiles_)) tiles_.resize(static_cast<std::size_t>(last + 1 - first_));
}

std::byte* TileRun::tile_of(int row) const {
  const std::ptrdiff_t index = row / size_.rows - first_;
  if (index < 0 || index >= std::ssize(tiles_) || tiles_[static_cast<std::size_t>(index)] == nullptr) return nullptr;
  return tiles_[static_cast<std::size_t>(index)]->data();
}

bool TileRun::owns(int row) const {
  return tile_of(row) != nullptr && tiles_[static_cast<std::size_t>(row / size_.rows - first_)].use_count() == 1;
}

std::size_t TileRun::allocated_bytes() const {
  std::size_t sum = 0;
  for_each_tile([&](int, const Buffer& tile) { sum += tile.size(); });
  return sum;
}

}  // namespace kvartet
