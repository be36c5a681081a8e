// Four bytes about every row of one KV head, kept by caches that evict: its true position (compression.md R1), and for H2O and
// CaM the sum of the weights that it received (5.5).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cache/tile_run.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/check.h"
#include "core/status.h"

namespace kvartet {

template <typename Number>
class RowNumbers {
 public:
  static constexpr int kTileRows = 128;
  static_assert(sizeof(Number) == 4);

  RowNumbers() : run_({kTileRows, kTileRows * sizeof(Number)}) {}

  // Makes rows [begin, end) writable; the only step that can fail.
  Status own(Arena& arena, int begin, int end) { return run_.own(arena, begin, end); }
  // Writes an owned row; a row after the last one makes the list longer.
  void set(int row, Number number) {
    KV_CHECK(row <= rows_ && run_.owns(row));
    std::memcpy(run_.tile_of(row) + offset_in_tile(row), &number, sizeof(Number));
    rows_ = std::max(rows_, row + 1);
  }
  // Writes all rows, which are owned.
  void set_all(std::span<const Number> numbers) {
    KV_CHECK(static_cast<int>(numbers.size()) == rows_);
    for (int row = 0; row < rows_; row += kTileRows) {
      KV_CHECK(run_.owns(row));
      std::memcpy(run_.tile_of(row), numbers.data() + row,
                  static_cast<std::size_t>(std::min(kTileRows, rows_ - row)) * sizeof(Number));
    }
  }
  void drop_last(int count) {
    KV_CHECK(count <= rows_);
    rows_ -= count;
    trim();
  }
  void trim() { run_.keep_only(0, rows_); }  // gives back what own() made beyond the rows

  int rows() const { return rows_; }
  Number at(int row) const {
    KV_CHECK(row >= 0 && row < rows_);
    Number number = 0;
    std::memcpy(&number, run_.tile_of(row) + offset_in_tile(row), sizeof(Number));
    return number;
  }
  std::vector<Number> all() const {
    std::vector<Number> numbers(static_cast<std::size_t>(rows_));
    for (int row = 0; row < rows_; row += kTileRows) {
      const auto count = static_cast<std::size_t>(std::min(kTileRows, rows_ - row));
      std::memcpy(numbers.data() + row, run_.tile_of(row), count * sizeof(Number));
    }
    return numbers;
  }

  ByteAccount bytes() const { return {bytes_of(rows_).live, run_.allocated_bytes()}; }
  static ByteAccount bytes_of(int rows) {
    const auto count = static_cast<std::size_t>(rows);
    const std::size_t tiles = (count + kTileRows - 1) / kTileRows;
    return {count * sizeof(Number), tiles * kTileRows * sizeof(Number)};
  }
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
    run_.for_each_tile([&](int index, const Buffer& tile) {
      const auto live = static_cast<std::size_t>(std::clamp(rows_ - index * kTileRows, 0, kTileRows));
      out->push_back(
          {fmt::format("{} tile {}", prefix, index), 1, Tier::kRam, {live * sizeof(Number), tile.size()}, tile.data()});
    });
  }

 private:
  static std::size_t offset_in_tile(int row) { return static_cast<std::size_t>(row % kTileRows) * sizeof(Number); }

  TileRun run_;
  int rows_ = 0;
};

using RowPositions = RowNumbers<std::int32_t>;
using RowSums = RowNumbers<float>;

}  // namespace kvartet
